package v4

import "github.com/pulumi/pulumi/sdk/v3/go/pulumi"

// RepositoryOpts say where a chart is, and how to log in there.
type RepositoryOpts struct {
	CaFile   pulumi.AssetOrArchive `pulumi:"caFile"`
	CertFile pulumi.AssetOrArchive `pulumi:"certFile"`
	KeyFile  pulumi.AssetOrArchive `pulumi:"keyFile"`
	Password *string               `pulumi:"password"`
	Repo     *string               `pulumi:"repo"`
	Username *string               `pulumi:"username"`
}

// RepositoryOptsInput is any input.
type RepositoryOptsInput interface{ pulumi.Input }

// PostRenderer is a command that changes a rendered chart.
type PostRenderer struct {
	Args    []string `pulumi:"args"`
	Command string   `pulumi:"command"`
}

// PostRendererInput is any input.
type PostRendererInput interface{ pulumi.Input }
