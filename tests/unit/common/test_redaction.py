"""Command lines and URLs as reports keep them."""

from __future__ import annotations

import pytest

from tailcut.common.redaction import command_without_secrets, tree_without_secrets, without_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h:80/predict", "https://h:80/predict"),
        ("https://h/predict?api_key=s3cret&x=1", "https://h/predict?…"),
        ("https://bob:s3c@ret@h/predict#s3cret", "https://…@h/predict#…"),
        ("postgresql://app@h/db?password=s3cret", "postgresql://…@h/db?…"),
        ("postgresql://app:s3/cret@h,h2/db", "postgresql://…@h,h2/db"),
        ("postgresql://app:s3?cr#et@h/db", "postgresql://…"),
        ("https://h/predict?key=s3@cret", "https://…"),
    ],
)
def test_a_url_without_who_asks(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


def test_a_command_line_without_what_nobody_else_may_know() -> None:
    """Flags and names stay: the line says how something was measured."""
    words = (
        *("tailcut", "profile", "https://h/predict?key=s3cret", "--header", "Authorization: Bearer s3cret"),
        *("--header=X-Key: s3cret", "--header", "s3cret", "--set", "features.database=postgres://bob:s3cret@h/db"),
        *("--set", "features.database=postgres://bob:s3cret/?@h/db", "--set", "u=http://h/?token=x@s3cret"),
        *("--set", "store=host=h password=s3cret user=u", "--slo", "p95=25ms", "--rate", "20"),
        *("--deployment-header", "Authorization: Bearer s3cret", "--deployment-header=X-Key: s3cret"),
    )
    shown = command_without_secrets(words)
    assert not [word for word in shown if "s3cret" in word]
    assert shown[2:6] == ["https://h/predict?…", "--header", "Authorization: …", "--header=X-Key: …"]
    assert shown[9:] == [
        "features.database=postgres://…@h/db", "--set", "features.database=postgres://…", "--set", "u=http://…",
        "--set", "store=host=h password=… user=u", "--slo", "p95=25ms",
        "--rate", "20", "--deployment-header", "Authorization: …", "--deployment-header=X-Key: …",
    ]  # fmt: skip


def test_what_is_kept_of_a_manifest_holds_no_secret_and_the_same_queries() -> None:
    sql = "SELECT * FROM t WHERE token=:now"
    kept = tree_without_secrets({"database": "postgresql://h/db?password=s3cret", "groups": [{"sql": sql, "n": 1}]})
    assert kept == {"database": "postgresql://h/db?password=…", "groups": [{"sql": sql, "n": 1}]}
