"""Rounds of a real daemon under load with one fault each, and what must hold after every one of them.

A round has clients at work (`clients`), one thing that happens (`faults`) and what is looked at then (`checks`);
`world.rounds` does many of them on one home, and `figures` says what they came to. For the tests alone.
"""
