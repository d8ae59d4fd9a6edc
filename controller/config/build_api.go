package config

import (
	"slices"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

func (b *builder) api() {
	given := b.schema.GetApi()
	if given == nil {
		return
	}
	api := &API{Listen: given.GetListen(), TLS: b.tlsFiles(given.GetTls()), Roles: b.roles(given.GetRoles())}
	if api.Listen != "" { // else it is missing, which is said already
		b.listenAddress("api.listen", api.Listen)
	}
	if api.Listen == b.config.Metrics.Listen {
		b.errorf("api.listen", "is %q, which metrics.listen is, too: give another port", api.Listen)
	}
	b.config.API = api
}

// tlsFiles are looked at again as long as the API runs: what is wrong with them
// now is no reason not to balance.
func (b *builder) tlsFiles(given *configv1.ApiTls) TLSFiles {
	named := func(field, file string) string {
		if file == "" {
			return ""
		}
		path := b.besideConfig(field, file)
		if _, _, err := b.readFile(path); err != nil {
			b.warnf(field, "%v: the API is not served over TCP until the controller can read it", err)
		}
		return path
	}
	files := TLSFiles{CertFile: named("api.tls.cert_file", given.GetCertFile()), CAFile: named("api.tls.ca_file", given.GetCaFile()), KeyFile: named("api.tls.key_file", given.GetKeyFile())}
	if _, mode, err := b.readFile(files.KeyFile); err == nil && mode.Perm()&0o007 != 0 {
		b.warnf("api.tls.key_file", "%s may be read by everybody (mode %04o): `chmod 0640 %s`", files.KeyFile, mode.Perm(), files.KeyFile)
	}
	return files
}

func (b *builder) roles(given *configv1.ApiRoles) Roles {
	roles := Roles{View: given.GetView(), Operate: given.GetOperate(), Admin: given.GetAdmin()}
	if given != nil && len(slices.Concat(roles.View, roles.Operate, roles.Admin)) == 0 {
		b.errorf("api.roles", "names no certificate, so every client would be refused: add `view`, `operate` or `admin` with names")
	}
	return roles
}
