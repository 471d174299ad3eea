"""docs/settings.md says what the settings classes say."""

from __future__ import annotations

from tools.make_settings_doc import TARGET, document

from gristmill.core.settings import ServeSettings


def test_the_settings_document_is_current() -> None:
    """Mend: run `python tools/make_settings_doc.py`."""
    assert TARGET.read_text(encoding="utf-8") == document(), f"{TARGET}: run `python tools/make_settings_doc.py`"


def test_every_setting_says_what_it_does() -> None:
    """A field without a description would be an empty help text."""
    silent = [name for name, field in ServeSettings.model_fields.items() if not field.description]
    assert not silent, f"core/settings.py: no description of {silent}"
