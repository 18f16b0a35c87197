"""The log formats that come with the package, each as a reader like a plugin's."""
