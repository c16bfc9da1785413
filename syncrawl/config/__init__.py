"""The configuration: frozen models (`model`), and TOML to model (`load`)."""
