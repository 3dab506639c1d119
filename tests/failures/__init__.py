"""Every way in which a record fails: what it looks like (``kinds``), how pipelines write (``roads``), and checks."""

import pytest

pytest.register_assert_rewrite("failures.judge")
