"""Why MSVR-v2's norm falls more slowly than its errors: what w makes of z's noise, along the runs of `fcco rates`.

Prints, over the second halves of horizons (non-convex) or stages (strongly convex), means over 16 seeds of ||grad F||^2,
of z's and u's squared errors, and the ratio of the first two. Constants are those that `fcco rates` tunes.

Run: .venv/bin/python benchmarks/rates_why.py | tee results/rates/why.txt    (three minutes)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from fcco.lab.rates import convex, forms, stationarity
from fcco.lab.rates.forms import Constants, First, Form, Sizes
from fcco.lab.rates.journeys import Setting, recipe, start, travel
from fcco.lab.rates.loop import Loop
from fcco.lab.rates.problems import curved, paired

SEEDS = 16
CONSTANTS = {Form.SOX: Constants(1.22, 0.979, 2.154), Form.V2: Constants(0.77, 18.93, 3.0)}
FIRST = {
    "msvr-v2": First(0.003, 250, 1.0, 0.5),
    "msvr-v1": First(0.00835, 125, 0.311, 0.5),
    "sox": First(0.0232, 31, 1.0, 1.0),
}


def show(title: str, journey: Iterator[Loop], ends: Sequence[int]) -> None:
    """A line for each end: means over the second half of the stretch that ends there."""
    print(f"\n{title}\n{'step':>8}{'|grad F|^2':>12}{'|z - grad F|^2':>16}{'|u - g|^2':>12}{'ratio':>8}")
    turn, begin, sums = 0, 0, np.zeros(4)
    for loop in journey:
        if turn == len(ends):
            break
        if loop.t > (begin + ends[turn]) / 2 and loop.z is not None:
            gradient = loop.problem.gradient(loop.w)
            error, apart = loop.z - gradient, loop.rows.u - loop.problem.inner(loop.w)
            seen = [x.square().sum(-1).mean().item() for x in (gradient, error)]
            sums += [1.0, *seen, apart.square().mean().item()]
        if loop.t == ends[turn]:
            _, norm, z, u = sums / sums[0]
            print(f"{loop.t:>8}{norm:>12.2e}{z:>16.2e}{u:>12.2e}{norm / z:>8.3f}")
            turn, begin, sums = turn + 1, loop.t, np.zeros(4)


def main() -> None:
    torch.set_num_threads(1)
    with torch.inference_mode():
        problem, marks = curved(20), [1000 * 2**k for k in range(7)]
        for form, constants in CONSTANTS.items():
            setting = Setting(problem, recipe(forms.METHOD[form], problem), start(problem, 1.0), SEEDS)
            stages = forms.decaying(form, Sizes(20), constants, marks[-1])
            show(f"non-convex, {form}", travel(setting, [stages]), marks)
        plan = convex.Plan(seeds=SEEDS)
        problem = paired(plan.m, q=plan.qs[0], scales=convex.ROUND)
        for method, one in FIRST.items():
            stages = convex._whole(method, one, plan.longest, 1.0)
            shares = ", ".join(f"{stage.steps * stage.beta / plan.m:.2g}" for stage in stages)
            ends = np.cumsum([stage.steps for stage in stages]).tolist()
            title = f"strongly convex, {method}; T_s beta_s B1/m by stage: {shares}"
            show(title, travel(convex.setting(plan, method, problem), [stages]), ends)
    assert stationarity.CASES[Form.V2][0] == 20  # the problem above is the one of the table


if __name__ == "__main__":
    main()
