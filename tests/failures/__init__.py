"""Ways in which a record fails: what it looks like (``kinds``), how pipelines write (``strategies``), and checks."""

import pytest

pytest.register_assert_rewrite("failures.judge")
