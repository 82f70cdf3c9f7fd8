"""StageWise: runs a solver through stages (the paper's Algorithm 3).

A stage changes lr, alpha and beta; everything else, (w_{T+1}, w_T, u_T, u_{T-1}, z_T), goes on from the step
before, because it stays in the solver. A boundary that changes no rate changes no bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, final

import torch

from fcco._support import checks
from fcco.methods import Adaptive
from fcco.methods.stages import Stage
from fcco.solver._report import Report
from fcco.solver._solver import Solver
from fcco.solver._state import fork
from fcco.solver._transaction import Transaction


@final
class StageWise:
    """Runs a solver through stages. Call its ``step`` instead of the solver's, until ``finished``.

    Args:
        solver: any solver. Its method's alpha and beta are replaced stage by stage.
        stages: the stages to run, in order.
        drawn: start each stage from the state after a step drawn uniformly from the one before, as the theory does (the
            rest of that stage is not run, since nothing of it would be used). Otherwise start from its last step.
        mu: for a convex problem made strongly convex, the weight of (mu/2)||w||^2. The term is the
            optimizer's weight decay (exact, and outside the projection of z). It must be set to mu, and the optimizer
            must be SGD, or ``fcco.Adaptive`` as in the paper. Adam and its variants raise a warning.
        seed: of the draws.

    Example:
        >>> from fcco import Solver, msvr_v2, objective
        >>> w = torch.nn.Parameter(torch.ones(1))
        >>> f = objective(
        ...     lambda i, x: w.expand(len(i), 1) + x,
        ...     lambda i, u: u.square().squeeze(1),
        ...     num_blocks=2,
        ...     parameters=[w],
        ... )
        >>> solver = Solver(f, torch.optim.SGD([w], lr=1.0), msvr_v2(alpha=1.0, beta=1.0))
        >>> run = StageWise(solver, [Stage(2, 0.1, 0.5, 0.5), Stage(2, 0.05, 0.25, 0.25)])
        >>> while not run.finished:
        ...     report = run.step(torch.tensor([0]), torch.zeros(1, 1))
        >>> solver.t, run.stage
        (4, 1)
    """

    def __init__(
        self, solver: Solver, stages: list[Stage], *, drawn: bool = False, mu: float = 0.0, seed: int = 0
    ) -> None:
        if not isinstance(solver, Solver):
            raise TypeError(f"solver must be a Solver, got {type(solver).__name__}")
        if not isinstance(stages, Sequence) or not stages or not all(isinstance(stage, Stage) for stage in stages):
            raise ValueError(f"stages must be a non-empty list of Stage, got {stages!r}")
        checks.flag("drawn", drawn)
        checks.whole("seed", seed)
        checks.non_negative("mu", mu)
        for group in solver.optimizer.param_groups:
            if group.get("weight_decay", 0.0) != mu:
                raise ValueError(
                    f"mu is {mu}, so the optimizer's weight_decay must be {mu} in every parameter group, "
                    f"got {group.get('weight_decay', 0.0)}"
                )
        # Adam divides the decay by its own scale, AdamW leaves it outside: neither minimises F + (mu/2)||w||^2.
        if mu > 0 and not isinstance(solver.optimizer, (torch.optim.SGD, Adaptive)):
            name = type(solver.optimizer).__name__
            warnings.warn(
                f"mu is {mu}, but the weight decay of {name} is not the gradient of (mu/2)||w||^2, which the "
                "theorem adds: "
                "use torch.optim.SGD",
                stacklevel=2,
            )
        self.solver = solver
        self.stages = list(stages)
        self.drawn = drawn
        self._method = solver.method  # as it was before the first stage
        self._generator = torch.Generator().manual_seed(seed)
        self.stage = -1
        self._left = 0

    @property
    def finished(self) -> bool:
        """Whether the last step of the last stage was taken."""
        return self._left == 0 and self.stage == len(self.stages) - 1

    def step(self, index: Any, *data: Any, chunk: int | None = None) -> Report:
        """Take one solver step, and enter the next stage if the last one is finished.

        Args:
            index: as for :meth:`Solver.step`.
            data: as for :meth:`Solver.step`.
            chunk: as for :meth:`Solver.step`.
        """
        if self.finished:
            raise ValueError(f"all {len(self.stages)} stages are finished, so there is no step left to take")
        taken = self.solver.t
        with Transaction() as transaction:
            if self._left == 0:
                self._guard(transaction)
                self._enter(self.stage + 1)
            try:
                return self.solver.step(index, *data, chunk=chunk)
            finally:
                # A skipped step leaves t alone, and the stage as long as it was.
                if self.solver.t > taken:  # also where a Ctrl-C was held back until the step was taken
                    transaction.commit()
                    self._left -= 1

    def _enter(self, stage: int) -> None:
        self._take_rates(stage)
        for group in self.solver.optimizer.param_groups:
            _set_lr(group, self.stages[stage].lr)
        self._left = self._length()
        if stage > 0:
            self.solver.renew_reference()  # every stage of Algorithm 3 starts with a pass over all data

    def _take_rates(self, stage: int) -> None:
        self.stage = stage
        method = self._method
        if stage >= 0:
            method = method.with_rates(alpha=self.stages[stage].alpha, beta=self.stages[stage].beta)
        self.solver.method = method

    def _guard(self, transaction: Transaction) -> None:
        """Where the step fails, the stage that it was to begin has not begun."""
        solver = self.solver
        transaction.on_failure(self.load_state_dict, self.state_dict())
        transaction.on_failure(setattr, solver, "state", fork(solver.state))  # renew_reference writes into it
        for group in solver.optimizer.param_groups:
            transaction.on_failure(_set_lr, group, float(group["lr"]))

    def _length(self) -> int:
        steps = self.stages[self.stage].steps
        if not self.drawn:
            return steps
        return int(torch.randint(1, steps + 1, (), generator=self._generator))

    def state_dict(self) -> dict[str, Any]:
        """The position in the stages. The solver's own state, with the learning rates, is separate."""
        return {
            "kind": self._kind(),
            "stage": self.stage,
            "left": self._left,
            "random": self._generator.get_state(),
        }

    def _kind(self) -> dict[str, Any]:
        rates = [[stage.steps, stage.lr, stage.alpha, stage.beta] for stage in self.stages]
        return {"stages": rates, "drawn": self.drawn}

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise if a state belongs to a run through other stages.

        Args:
            state: what ``state_dict`` gave.
        """
        missing = [name for name in ("stage", "left", "random") if name not in state]
        if missing:
            raise ValueError(f"the state is not one of a StageWise: it lacks {', '.join(missing)}")
        if not -1 <= state["stage"] < len(self.stages):
            raise ValueError(f"the state is in stage {state['stage']}, but there are only {len(self.stages)} stages")
        checks.same_kind("StageWise", state.get("kind"), self._kind())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the position of a run through the same stages.

        Args:
            state: what ``state_dict`` gave.
        """
        self.check_state_dict(state)
        self._generator.set_state(state["random"])
        self._take_rates(state["stage"])
        self._left = state["left"]


def _set_lr(group: dict[str, Any], lr: float) -> None:
    """Set a learning rate; one in a tensor is written in place, since a captured step knows its address."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr
