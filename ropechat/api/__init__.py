"""The HTTP server of OpenAI's form, `ropechat api`: requests become jobs of one engine."""
