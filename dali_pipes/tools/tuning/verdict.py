"""The winner of the search against the default, the setting that is kept, and the sentence that
says why.

`winner_of` takes the winner of a race, `compare` measures it against the default, `verdict`
decides.
"""

from typing import cast

from dali_pipes.errors import ConfigError
from dali_pipes.measure.figures import result_figures
from dali_pipes.measure.results import Agreement, Compared, RunFigures, Trial
from dali_pipes.measure.rounds import list_trials
from dali_pipes.measure.wording import comparison, interval
from dali_pipes.measure.worker_process import ArmError
from dali_pipes.tools.tuning.config import TuneConfig
from dali_pipes.tools.tuning.search import Race, Run, over_limit, ran_out_of_memory
from dali_pipes.tools.tuning.settings import Setting


class Comparison(RunFigures):
    """The winner (`tuned`) against the default.

    Attributes:
        failed: says that the winner ran out of memory; None: it did not.
        agreement: how far the pixels of both agree; None: not compared.
    """

    failed: str | None
    agreement: Agreement | None


def winner_of(race: Race) -> Setting:
    """Returns the setting that the search ends with; the default unless another was faster.

    Raises a ConfigError if none can be kept.
    """
    best = race.best()
    if best is None:
        smallest = min(race.out, key=lambda setting: setting.size)
        raise ConfigError(
            f"no setting that was tried can be kept, not even the smallest, {smallest}: "
            f"{race.out[smallest]}"
        )
    return best


def compare(run: Run, default: Setting, winner: Setting, pairs: int, seed: int) -> Comparison:
    """Runs the A/B of docs/method.md in new trials: the best of many was partly lucky in the trials
    that selected it.

    Returns:
        the figures of "default" and "tuned", none if the latter ran out of memory.

    Raises:
        ArmError: a trial failed for another reason, or one of the default.
    """
    arms, done = {"default": default, "tuned": winner}, list[Trial]()
    for key in list_trials(list(arms), "default", pairs, seed):
        try:
            done.append(run(key, arms[key.arm]))
        except ArmError as error:
            # only the winner may run out of memory: the default then stays
            if key.arm == "default" or not ran_out_of_memory(error):
                raise
            return {
                "arms": {},
                "control": None,
                "planning": [],
                "failed": "ran out of memory",
                "agreement": None,
            }

    return {**result_figures(done, list(arms), "default"), "failed": None, "agreement": None}


def verdict(
    config: TuneConfig, race: Race, winner: Setting, compared: Comparison | None
) -> tuple[Setting, str]:
    """Returns the setting to keep, and why: the winner if it is faster than the default beyond the
    noise, or if the default is out.

    Args:
        compared: the result of `compare`; None: the winner is the default, or the default does not
            run.

    Raises:
        ConfigError: neither can be kept.
    """
    default, out = race.default, race.out.get(race.default)

    if compared is None:
        if winner == default:
            return default, f"The default stays, {default}. {_nothing_faster(race)}"
        return winner, f"{winner} is kept, and not compared: the default, {default}, {out}"

    if spoiled := compared["failed"] or over_limit(config, compared["arms"]["tuned"]):
        if out:
            raise ConfigError(
                f"no setting that was tried can be kept: {winner} in the comparison: "
                f"{spoiled}; {default}: {out}"
            )
        return default, f"The default stays, {default}. {winner} in the comparison: {spoiled}"

    ratio = cast(Compared, compared["arms"]["tuned"]["ratio"])
    claim, sentence = (
        ratio["images_per_s"]["claim"],
        comparison(str(winner), "the default", ratio, config.pairs),
    )

    # out for a limit: the winner is kept even if it is slower
    if out:
        return (
            winner,
            f"{winner} is kept, since the default, {default}, cannot be: {out}. {sentence}",
        )
    if claim == "more":
        return winner, f"{sentence}; the default is {default}"
    # untrustworthy: in the control the default differed from itself
    again = "; try again when the machine is quiet" if claim == "untrustworthy" else ""
    return default, f"The default stays, {default}. {sentence}{again}"


def _nothing_faster(race: Race) -> str:
    """Returns a sentence on the fastest of those that ran in the most rounds: it is not faster than
    the default beyond the noise of the search.
    """
    ratios = {setting: ratio for setting in race.others if (ratio := race.against_default(setting))}
    if not ratios:
        return "No other setting could be measured"

    best = max(ratios, key=lambda setting: (len(race.trials[setting]), ratios[setting].estimate))
    nearest = (
        f"{best}, {interval(ratios[best].to_dict())} × its images/s in "
        f"{len(race.trials[best])} rounds"
    )
    return (
        f"None of {len(race.others)} others is faster beyond the noise of the search; the "
        f"nearest: {nearest}"
    )
