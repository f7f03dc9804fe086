"""What a broker offers and a node needs, and what becomes of it when they do not agree."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.rules.close_codes import CLOSE_CODES, NOT_TRUSTED, close_code
from holdfast.rules.errors import (
    BadValue,
    FeatureParamBelowFloor,
    FeatureParamInvalid,
    FeatureUnavailable,
    HoldfastError,
    ZoneNotTrusted,
)
from holdfast.rules.features import (
    DEDUPE,
    NEEDS,
    PAYLOAD,
    SYNC,
    check,
    check_needs,
    check_retention,
    offered,
)


def changed(feature: str, **params: Any) -> dict[str, dict[str, Any]]:
    supported = offered("retention_scoped", 30)
    supported[feature] = {**supported[feature], **params}
    return supported


def without(feature: str, param: str | None = None) -> dict[str, dict[str, Any]]:
    supported = offered("retention_scoped", 30)
    if param is None:
        del supported[feature]
    else:
        del supported[feature][param]
    return supported


def test_D9_a_node_takes_the_terms_of_a_broker_of_its_own_version() -> None:
    terms = check(offered("retention_scoped", 30))
    assert (terms.mode, terms.retention_days) == ("retention_scoped", 30)
    assert terms.inline_bytes >= 1024
    assert check(offered("permanent", 0)).retention_days is None


def test_D9_what_is_not_known_is_passed_over() -> None:
    supported = {**offered("permanent", 0), "something_new": {"version": 7, "far": [1, 2]}}
    supported[DEDUPE]["tombstone_history_pruned_window_days"] = 5
    assert check(supported).mode == "permanent"


@pytest.mark.parametrize(
    "offer", [without(DEDUPE, "fingerprint_version"), changed(DEDUPE, fingerprint_version=1)]
)
def test_D3_a_broker_that_reads_version_1_only_is_left_before_it_refuses_messages(
    offer: dict[str, dict[str, Any]],
) -> None:
    with pytest.raises(FeatureUnavailable, match="up to version 1") as found:
        check(offer)
    assert close_code(found.value) == 4010
    assert "upgrade the broker" in (found.value.hint or "")


@pytest.mark.parametrize("feature", [DEDUPE, PAYLOAD, SYNC])
def test_D9_a_missing_feature_is_4010(feature: str) -> None:
    with pytest.raises(FeatureUnavailable) as found:
        check(without(feature))
    assert close_code(found.value) == 4010


def test_D9_dedupe_without_fingerprints_is_a_missing_feature() -> None:
    with pytest.raises(FeatureUnavailable):
        check(changed(DEDUPE, version=1))


@pytest.mark.parametrize(
    "supported",
    [
        changed(DEDUPE, mode="sometimes"),
        changed(DEDUPE, mode=None),
        changed(DEDUPE, request_fingerprint=False),
        changed(DEDUPE, request_fingerprint=1),
        changed(DEDUPE, dedupe_retention_days="30"),
        changed(DEDUPE, dedupe_retention_days=True),
        changed(DEDUPE, dedupe_retention_days=-1),
        changed(DEDUPE, dedupe_retention_days=30.0),
        changed(DEDUPE, version=3),
        changed(PAYLOAD, inline_bytes=None),
        without(DEDUPE, "version"),
        without(DEDUPE, "dedupe_retention_days"),
        without(PAYLOAD, "blob_bytes"),
    ],
)
def test_D9_a_parameter_that_is_not_as_it_must_be_is_4011(
    supported: dict[str, dict[str, Any]],
) -> None:
    with pytest.raises(FeatureParamInvalid) as found:
        check(supported)
    assert close_code(found.value) == 4011


@pytest.mark.parametrize(
    "supported", [changed(DEDUPE, dedupe_retention_days=2), changed(PAYLOAD, inline_bytes=1023)]
)
def test_D9_a_parameter_below_the_floor_is_4012(supported: dict[str, dict[str, Any]]) -> None:
    with pytest.raises(FeatureParamBelowFloor) as found:
        check(supported)
    assert close_code(found.value) == 4012


def test_D9_a_broker_knows_whether_it_has_what_a_node_needs() -> None:
    supported = offered("permanent", 0)
    check_needs(NEEDS, supported)
    check_needs({}, supported)
    with pytest.raises(FeatureUnavailable):
        check_needs({"telepathy": 1}, supported)
    with pytest.raises(FeatureUnavailable):
        check_needs({DEDUPE: 3}, supported)
    with pytest.raises(FeatureParamInvalid):
        check_needs({DEDUPE: 1}, supported)


@pytest.mark.parametrize("days", [-1, 0, 2])
def test_D8_a_retention_below_three_days_is_refused_by_name(days: int) -> None:
    with pytest.raises(FeatureParamBelowFloor) as found:
        check_retention("retention_scoped", days)
    assert found.value.code == "feature_param_below_floor"
    with pytest.raises(FeatureParamBelowFloor):
        offered("retention_scoped", days)
    assert check_retention("retention_scoped", 3) == 3
    with pytest.raises(BadValue):
        check_retention("retention_scoped", 10**7)


def test_D9_only_disagreements_about_features_have_codes_of_their_own() -> None:
    assert sorted(CLOSE_CODES.values()) == [4010, 4011, 4012]
    other: HoldfastError = ZoneNotTrusted("no")
    assert close_code(other) == NOT_TRUSTED
