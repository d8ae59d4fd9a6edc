package peers

import (
	"crypto/hmac"
	"crypto/sha256"

	"github.com/guideway/guideway/controller/sinks/session"
)

// keyOf what the sender sends to the receiver, and of the answers. The sender's name stands
// behind its length, so no other two names share it.
func keyOf(secret []byte, sender, receiver string) session.Key {
	all := sha256.Sum256(append([]byte("guideway peers\x00"), secret...))
	mac := hmac.New(sha256.New, all[:])
	mac.Write([]byte{byte(len(sender))})
	mac.Write([]byte(sender + receiver))
	return session.Key(mac.Sum(nil))
}
