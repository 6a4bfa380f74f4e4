"""The broker that every model call goes through, the providers behind it, and what they cost.

It imports the standard library, `spl.errors`, httpx2 and genai-prices only. The kernel's infer door is its one caller,
and no provider's key leaves this room.
"""
