"""nano-K3 in three formats, served by SGLang and measured by truecast's own commands: one table."""
