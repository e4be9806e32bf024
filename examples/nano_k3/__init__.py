"""nano-K3: a small model of Kimi-K3's architecture, trained from text and dialogues made here."""
