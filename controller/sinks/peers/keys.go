package peers

import (
	"crypto/sha256"

	"github.com/guideway/guideway/controller/sinks/session"
)

// keyOf what the sender sends to the receiver, and of the answers.
func keyOf(secret []byte, sender, receiver string) session.Key {
	return session.KeyOfPair(sha256.Sum256(append([]byte("guideway peers\x00"), secret...)), sender, receiver)
}
