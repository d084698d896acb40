"""Small helpers that import nothing else of ropechat but its errors."""
