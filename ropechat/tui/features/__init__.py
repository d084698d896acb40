"""What the chat can do, one file per feature; `ropechat.tui.ui` says what a feature is."""
