"""Operations on dead letters, on the embedded broker in virtual time."""
