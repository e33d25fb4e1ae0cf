"""What tests of other libraries leave as they have found it."""

import pytest


@pytest.fixture
def alone():
    """Accelerate's states are those of the process."""
    yield
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
