"""ropechat: chat with local language models and see every token's probability."""
