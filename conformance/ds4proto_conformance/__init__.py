"""Is a ds4 peer right? Test cases, verdicts and reports."""
