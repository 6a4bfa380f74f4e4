"""What the tests of this room share is no test module by its name, so pytest is told to explain its failures too."""

import pytest

pytest.register_assert_rewrite("tests.kernel.doors")
