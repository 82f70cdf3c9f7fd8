"""Why intervals miss their claims, as far as it was found out: from the full run and from runs made to find out."""

from __future__ import annotations

from dataclasses import replace

from fcco.lab.rates.fit import Row

QUICK = "The quick run is too short to judge; see the full one."
UNKNOWN = "No reason found."

_BETA = (
    "The best beta is not small against 1 over this range, and the noise that it leaves is beta/(2 - beta), not "
    "beta/2: the line bends."
)
_SHARE = (
    "m/B1 stands for (m - B1)/B1 in the claim, and the correction for the blocks that were not drawn shrinks by the "
    "factor 1 - B1/m besides: 16 of 80 blocks is not a small share."
)
_DRAWN = (
    "B2 reduces the noise of samples only. With one block a step the noise of drawing blocks is larger, does not "
    "depend on B2 (no assumption of the paper bounds it), and the larger step that the schedule allows itself "
    "raises it."
)
_FLOOR_M = (
    "At the smallest m, where the constants are tuned, the noise of the drawn block sets the time, and that does not "
    "depend on m; the term in m takes over as m grows (last two points)."
)
_BOUND = "The claim bounds the worst case, and this problem is easier."
_START = "The way from the start, which the mean contains, still shows: it fades as 1/T (first two points)."
_AVERAGED = (
    "The error of z comes near its claim (it has its own row in the table of the non-convex problem). But w itself "
    "averages z's noise over 1/(L eta) steps, and that helps as long as the noise is forgotten faster, in 1/alpha. The "
    "theorem lets alpha fall as eta^2, so alpha/eta falls and the help fades: ||grad F||^2 over z's squared error "
    "rises from 0.09 to 0.30 from step 1,000 to 64,000 of the non-convex problem and from 0.014 to 0.060 over "
    "the stages of the strongly convex one, while for SOX, whose alpha/eta is constant, it stays (0.11 to 0.13)."
)
_MOMENTUM = (
    "Tuning balances the two terms of the bound at the first horizon. After it the noise of the momentum, alpha "
    "sigma^2 with alpha ~ eta ~ T^(-1/3), leads, T^(-1/6) in the norm; the theorem's constants keep it below the "
    "other term until T = m^4 = 10^8. beta stands at its cap of 1/2 until t = 5,000 besides."
)
_V1_STAGES = (
    "No theorem gives v1's stages. With beta_s ~ eps_s^2 and T_s ~ 1/eps_s a stage is too short to forget the one "
    "before: T_s beta_s B1/m falls from 3 to 0.01, and the tracking error stays near 0.03 from the sixth stage on."
)
_SMOOTH = (
    "f has a third derivative here, so the bias of f'(g) with B2 samples is half of it times var/B2, in 1/B2 and not "
    "in B2^(-1/2): the claim is for f' that is Lipschitz only."
)
_KINK = "Blocks away from the kink of f' have no bias at all; their share falls with B2 until few are left (last two)."
_LINEAR = "On this problem v3 converges linearly near the stationary point, so the sum of the norms is finite: 1/T."
_SMALL = "At small steps the corrections are all but 0, and so are the differences: 0.1 %."
_EARLY = (
    "The mean over the run holds the first steps, where alpha is not small; the slope comes nearer with T (last two)."
)
_SCALED = (
    "While |z| is above delta the step is eta/(|z| + delta) in effect, which grows as |z| falls and undoes the decay "
    "of eta. With delta = 1, or in AMSGrad style, where h does not fall, the slope is v2's own."
)
_OPEN = "Not resolved: the interval holds both sides."
_CONSTANTS = (
    "Both fall as 1/samples in theory, so the claim is about constants. On this problem the formula's gamma = 20 "
    "holds v2 to a step a tenth of SOX's, and w averages SOX's noise better (see v2's slope)."
)

# the start of a row's key, how it misses ("" where the claim is a bound) -> why; the first that fits is taken
REASONS: tuple[tuple[str, str, str], ...] = (
    (
        "tracking: MSVR, finite sum",
        "flatter",
        "At the largest d the anchor is I d = 1.9 behind, the circle's radius.",
    ),
    ("tracking: moving average", "steeper", _BETA),
    ("tracking: STORM, naive", "steeper", _BETA),
    ("tracking: MSVR", "steeper", _BETA),
    ("scaling: MSVR, finite sum: tracking error against B1", "steeper", _SHARE),
    ("scaling: MSVR: tracking error against B1", "steeper", _SHARE),
    ("scaling: MSVR-SP: tracking error against B1", "steeper", _SHARE),
    ("scaling: STORM, naive: tracking error against B1", "steeper", _SHARE),
    ("scaling: moving average: tracking error", "", _BETA),
    ("scaling: STORM, naive: tracking error", "", _BETA),
    ("scaling: MSVR: tracking error", "", _BETA),
    ("scaling: MSVR-SP: tracking error", "", _BETA),
    ("scaling: MSVR-v2: iterations against B2", "flatter", _DRAWN),
    ("scaling: SOX: iterations against B2", "flatter", _DRAWN),
    (
        "scaling: MSVR-v1 (late): iterations against m",
        "steeper",
        "The claim holds while m < max(B1, B2)/(eps sqrt(B2)), here about 10; beyond it the bound's other branch, "
        "linear in m, is the larger one (last two points), and beta runs into its cap of 1/2.",
    ),
    ("scaling: MSVR-v2: iterations against m", "flatter", _FLOOR_M),
    ("scaling: SOX: iterations against m", "flatter", _FLOOR_M),
    ("stationarity: SOX: root mean square", "steeper", _START),
    ("stationarity: MSVR-v1 (early): ", "flatter", _MOMENTUM),
    ("stationarity: MSVR-v2: mean norm, constant-free", "flatter", UNKNOWN),
    ("stationarity: MSVR-v2: mean norm", "flatter", _AVERAGED),
    ("stationarity: MSVR-v2: root mean square", "flatter", _AVERAGED),
    ("stationarity: MSVR-v3: mean norm", "steeper", _LINEAR),
    ("stationarity: SOX: error of z", "flatter", _EARLY),
    ("stationarity: MSVR-v2: error of z", "flatter", _EARLY),
    ("convex: MSVR-v2: gap against samples, strongly convex", "flatter", _AVERAGED),
    ("convex: MSVR-v1: gap against samples, strongly convex", "flatter", _V1_STAGES),
    ("convex: MSVR-v1: samples to one gap", "flatter", _BOUND),
    ("convex: SOX: samples to one gap", "flatter", _BOUND),
    ("convex: SOX: samples times gap", "", _CONSTANTS),
    ("convex: MSVR-v1: samples times gap", "", _OPEN),
    ("convex: MSVR-v2: gap against samples, convex", "steeper", _BOUND),
    ("convex: MSVR-v1: gap against samples, convex", "steeper", _BOUND),
    ("convex: SOX: gap against samples, convex", "steeper", _BOUND),
    ("convex: MSVR-v3: gap against samples, convex", "steeper", _BOUND),
    ("ablation: non-convex, v2: rho <= 1/2: median norm of gamma", "", _SMALL),
    ("finite: MSVR-v3: iterations against n", "flatter", _BOUND),
    ("remarks: adaptive MSVR-v2, Adam style, delta = 0.1", "flatter", _SCALED),
    ("remarks: adaptive MSVR-v2", "flatter", "As v2 itself. " + _AVERAGED),
    ("remarks: MSVR-v2 with SP", "flatter", "As v2 itself. " + _AVERAGED),
    ("remarks: all blocks probed", "steeper", _START),
    ("remarks: SOX (its beta = 1", "steeper", _BOUND),
    ("remarks: BSGD: gap", "steeper", _BOUND),
    ("biased: BSGD, smooth f: ", "steeper", _SMOOTH),
    ("biased: BSGD, kinked f': ", "steeper", _KINK),
)


def reason(row: Row, quick: bool) -> Row:
    """Return the row with the reason why it misses its claim."""
    if quick:
        return replace(row, reason=QUICK)
    for start, how, why in REASONS:
        if row.key.startswith(start) and row.verdict.endswith(how):
            return replace(row, reason=why)
    return replace(row, reason=UNKNOWN)
