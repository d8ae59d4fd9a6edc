package config

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// Hex digits of a shared digest: of accidents, not of attacks, it has to tell two apart.
const sharedDigestDigits = 16

// sharedDigest of what machines with one config have in common. Files differ even then:
// each has its own part, peers name the others, and the secret may have another path.
// Comments and the way it is written do not count, the order of lists does.
func sharedDigest(schema *configv1.Config) string {
	shared := &configv1.Config{}
	schema.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if name := string(field.Name()); name != "peers" && !slices.Contains(machineKeys, name) {
			shared.ProtoReflect().Set(field, value)
		}
		return true
	})
	if shared.Cluster != nil {
		shared.Cluster = proto.CloneOf(shared.Cluster)
		shared.Cluster.SecretFile = nil
	}
	text, _ := proto.MarshalOptions{Deterministic: true}.Marshal(shared) // decoded from text: it can be
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:sharedDigestDigits]
}
