"""What the command's flags make of TLS files and tokens."""

import pytest
import typer

from client.access import call_metadata, channel_credentials
from client.options import AnswerOptions
from tests.certificates import Authority


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    mine, other = authority.issue("mine"), authority.issue("other")
    (folder / "rubbish").write_text("rubbish")
    return {
        "CA": authority.ca,
        "CERT": mine.certificate,
        "KEY": mine.key,
        "OTHER": other.key,
        "RUBBISH": str(folder / "rubbish"),
        "NOTHING": str(folder / "nothing"),
    }


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"tls_ca": "NOTHING"}, "--tls-ca"),
        ({"tls_ca": "RUBBISH"}, "--tls-ca"),
        ({"tls_certificate": "CERT"}, "--tls-key"),
        ({"tls_key": "KEY"}, "--tls-key"),
        ({"tls_certificate": "CERT", "tls_key": "OTHER"}, "--tls-key"),
        ({"tls_certificate": "RUBBISH", "tls_key": "KEY"}, "--tls-certificate"),
    ],
)
def test_files_that_do_not_fit_are_named_by_their_flag(files, flags, named):
    with pytest.raises(typer.BadParameter) as caught:
        channel_credentials(AnswerOptions(**{name: files[value] for name, value in flags.items()}))
    assert caught.value.param_hint == named


@pytest.mark.parametrize("flags", [{}, {"tls_ca": "CA"}, {"tls_ca": "CA", "tls_certificate": "CERT", "tls_key": "KEY"}])
def test_files_that_fit(files, flags):
    assert channel_credentials(AnswerOptions(**{name: files[value] for name, value in flags.items()}))


def test_a_token_goes_with_every_call():
    assert call_metadata(AnswerOptions()) == ()
    assert call_metadata(AnswerOptions(token="abc")) == (("authorization", "Bearer abc"),)


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "ä"])
def test_what_no_header_can_hold_is_refused(token):
    with pytest.raises(typer.BadParameter, match="not a token") as caught:
        call_metadata(AnswerOptions(token=token))
    assert "a b" not in str(caught.value)
