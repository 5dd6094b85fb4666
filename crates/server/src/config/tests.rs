//! Checks of the settings, as text.
