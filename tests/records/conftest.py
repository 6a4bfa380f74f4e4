"""The contract is no test module by its name, so pytest is told to explain its failures too."""

import pytest

pytest.register_assert_rewrite("tests.records.contract")
