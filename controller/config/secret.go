package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// Groups of the processes that read such files; the controller is in both.
const (
	controllerGroup = "guideway"
	speakerGroup    = "guideway-speaker"
)

// ReadFile reads a file that the config names, and returns its mode.
type ReadFile func(path string) ([]byte, fs.FileMode, error)

// TrimSecret removes the white space that editors and `echo` leave at the end
// of a secret. The forwarder does the same, with the same idea of white space
// (Rust's trim_ascii_end): a vertical tab is part of the secret.
func TrimSecret(secret []byte) []byte {
	return bytes.TrimRight(secret, " \t\n\f\r")
}

// KeyID names a secret without giving it away: hex of the first 8 bytes of
// SHA-256("guideway key id\0" || secret). Equal ids mean equal keys, so a
// controller and a forwarder with different secrets notice.
func KeyID(secret []byte) string {
	digest := sha256.Sum256(append([]byte("guideway key id\x00"), TrimSecret(secret)...))
	return hex.EncodeToString(digest[:8])
}

// besideConfig resolves a path against the directory of the file that names it;
// one from etcd against that of the machine's file that has `etcd`.
func (b *builder) besideConfig(field, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	file := b.document.position(field).file
	if file == b.document.shared { // which has no directory
		file = b.document.values["etcd"].file
	}
	return filepath.Join(filepath.Dir(file), path)
}

// secretFile reads the cluster's secret for its id.
func (b *builder) secretFile(field, given string) (path, keyID string) {
	path = b.besideConfig(field, given)
	data, ok := b.readSecret(field, path, controllerGroup, makeSecret(path))
	if !ok {
		return path, ""
	}
	if n := len(TrimSecret(data)); n < secretBytesMin {
		b.errorf(field, "%s holds %d bytes, not counting white space at the end; at least %d are needed: %s", path, n, secretBytesMin, makeSecret(path))
		return path, ""
	}
	return path, KeyID(data)
}

// makeSecret: the command that makes one, and for whom else.
func makeSecret(path string) string {
	cure := fmt.Sprintf("copy it from another machine of the cluster, or make the first one with `head -c 32 /dev/urandom | base64 | install -m 640 -g guideway /dev/stdin %s`", path)
	if path != DefaultSecretFile {
		cure += "; the forwarder needs it too: --secret-file " + path
	}
	return cure
}

// passwordFile checks that a password can be used; who uses it reads it.
func (b *builder) passwordFile(field, given string) string {
	path := b.besideConfig(field, given)
	data, ok := b.readSecret(field, path, speakerGroup, "create it with mode 0640 and group "+speakerGroup+", or correct the path")
	if !ok {
		return path
	}
	if n := len(TrimSecret(data)); n == 0 || n > passwordBytesMax {
		b.errorf(field, "%s holds %d bytes, not counting white space at the end: a TCP MD5 password has 1 to %d", path, n, passwordBytesMax)
	}
	return path
}

func (b *builder) readSecret(field, path, group, cure string) ([]byte, bool) {
	data, mode, ok := b.readNamed(field, path, group, cure)
	if ok && mode.Perm()&0o007 != 0 {
		b.warnf(field, "%s may be read by everybody (mode %04o): `chmod 0640 %s`", path, mode.Perm(), path)
	}
	return data, ok
}

// readNamed reads a file that a field names, and that this group may read.
func (b *builder) readNamed(field, path, group, cure string) ([]byte, fs.FileMode, bool) {
	data, mode, err := b.readFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		b.errorf(field, "%s does not exist: %s", path, cure)
	case errors.Is(err, fs.ErrPermission):
		b.errorf(field, "%s may not be read by this user: run this as root or as the controller's user (sudo -u guideway), whose it is by `chown root:%s %s && chmod 0640 %s`", path, group, path, path)
	case err != nil:
		b.errorf(field, "%s cannot be read: %v", path, err)
	}
	return data, mode, err == nil
}
