"""Accelerate: your own loop, with the solver's state in the Accelerator's checkpoints."""

from __future__ import annotations

from accelerate import Accelerator, DistributedType

from fcco.checkpoint import Stateful
from fcco.solver import Solver

# Where every rank has whole parameters.
_WHOLE = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)

__all__ = ["register"]


def register(accelerator: Accelerator, solver: Solver, *parts: Stateful) -> None:
    """Make ``accelerator.save_state`` and ``load_state`` hold the solver, its loader and whatever else is given.

    Prepare the network, make the objective around it, and leave the optimizer to the solver: its state is part of the
    solver's. Schedulers are stepped by hand and registered here too. The Accelerator joins the ranks, so make it before
    the loader and the Solver. ``load_state`` goes on bit for bit, in the middle of an epoch too.

    Args:
        accelerator: without a gradient scaler and without gradient accumulation.
        solver: on the accelerator's device.
        parts: the loader, schedulers, ...: whatever has a ``state_dict``.

    Example:
        >>> import torch, fcco
        >>> accelerator = Accelerator(cpu=True)
        >>> x, y = torch.randn(1000, 20), torch.randint(10, (1000,))
        >>> network = accelerator.prepare(torch.nn.Linear(20, 10))
        >>> objective = fcco.objectives.MultiTaskAUC(network, fcco.data.Tasks(x, y))
        >>> optimizer = torch.optim.Adam(objective.parameters(), lr=1e-3)
        >>> solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(alpha=0.1, beta=0.1))
        >>> loader = solver.loader(blocks=5, samples=32)
        >>> register(accelerator, solver, loader)
        >>> for batch in loader:
        ...     report = solver.step(batch)
        >>> report.step
        6
    """
    if not isinstance(solver, Solver):
        raise TypeError(f"solver must be a fcco.Solver, got {type(solver).__name__}")
    if accelerator.mixed_precision not in ("no", "bf16"):
        given = accelerator.mixed_precision
        raise ValueError(f"mixed_precision must be no or bf16, got {given}: a gradient scaler would rescale z")
    if accelerator.gradient_accumulation_steps != 1:
        given = accelerator.gradient_accumulation_steps
        raise ValueError(
            f"gradient_accumulation_steps must be 1, got {given}: a step is one draw of blocks, so draw more "
            "blocks instead"
        )
    if accelerator.distributed_type not in _WHOLE:
        given = accelerator.distributed_type.value
        raise ValueError(f"distributed_type {given} is not supported: the solver needs whole parameters on every rank")
    if solver.device.type != accelerator.device.type:
        raise ValueError(f"the solver was created on {solver.device}, but the accelerator uses {accelerator.device}")
    accelerator.register_for_checkpointing(solver, *parts)
