module trainyard/local/pulumi-plugins-python

go 1.24.0

// Nothing of this module is compiled: pulumi-language-python-exec, a Python script, is copied from its directory.
require github.com/pulumi/pulumi/sdk/v3 v3.274.0
