"""Signatures against AWS's published test suite and the worked example of its user guide."""

from datetime import UTC, datetime

import pytest

from orchestrator.adapters.model_gateway.sigv4 import AwsKey, signed_headers

KEY = AwsKey("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
HOST = "https://example.amazonaws.com"
FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
IAM = "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08"


@pytest.mark.parametrize(
    ("method", "url", "headers", "service", "signature"),
    [
        (
            "GET",
            f"{HOST}/",
            {},
            "service",
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            "POST",
            f"{HOST}/",
            {},
            "service",
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        ),
        (
            "GET",
            f"{HOST}/?Param2=value2&Param1=value1",
            {},
            "service",
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        (
            "POST",
            f"{HOST}/",
            {"My-Header1": "value1"},
            "service",
            "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c",
        ),
        (
            "GET",
            IAM,
            FORM,
            "iam",
            "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
        ),
    ],
    ids=["get-vanilla", "post-vanilla", "get-query-order", "post-header", "iam-list-users"],
)
def test_published_vectors(
    method: str, url: str, headers: dict[str, str], service: str, signature: str
) -> None:
    added = signed_headers(
        KEY,
        method=method,
        url=url,
        headers=headers,
        body=b"",
        region="us-east-1",
        service=service,
        now=datetime(2015, 8, 30, 12, 36, tzinfo=UTC),
    )
    assert added["x-amz-date"] == "20150830T123600Z"
    assert added["authorization"].endswith(f"Signature={signature}")
