package key

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
)

// Overhead is what sealing adds to a plaintext: a random nonce of 12 bytes in front and a tag of 16 behind
// (AES-256-GCM, NIST SP 800-38D).
const Overhead = 12 + 16

// ErrOpen is returned for a sealed message that was not made by the holder of the other key, or was changed.
var ErrOpen = errors.New("sealed message does not open")

// A Box seals messages between two X25519 keys, each direction under a key of its own, so that a message
// reflected to its sender does not open. Nonces are random: after 2^32 messages in one direction a collision
// becomes likelier than NIST allows, which at the probing rates of a path is some decades.
// A Box is safe for concurrent use. Its zero value opens nothing and panics on Seal.
type Box struct {
	seal, open cipher.AEAD
}

// Agree derives the box between a private key and another's public one. The purpose keeps boxes of different
// protocols apart. It fails without a private key, and on a public key of low order, which an attacker could
// choose to know the secret.
func Agree[A, B Role](own Private[A], other Public[B], purpose string) (Box, error) {
	if own.IsZero() {
		return Box{}, fmt.Errorf("own key: there is no %s", own.name())
	}
	priv, err := ecdh.X25519().NewPrivateKey((*own.k)[:])
	if err != nil {
		return Box{}, fmt.Errorf("own key: %w", err)
	}
	pub, err := ecdh.X25519().NewPublicKey(other.k[:])
	if err != nil {
		return Box{}, fmt.Errorf("other key: %w", err)
	}
	secret, err := priv.ECDH(pub)
	if err != nil {
		return Box{}, fmt.Errorf("agreeing with %s: %w", other, err)
	}
	mine := own.Public().k
	var b Box
	if b.seal, err = direction(secret, purpose, mine, other.k); err != nil {
		return Box{}, err
	}
	b.open, err = direction(secret, purpose, other.k, mine)
	return b, err
}

func direction(secret []byte, purpose string, from, to [Size]byte) (cipher.AEAD, error) {
	k, err := hkdf.Key(sha256.New, secret, nil, "weft "+purpose+"\x00"+string(from[:])+string(to[:]), 32)
	if err != nil {
		return nil, err
	}
	return sealer(k)
}

func sealer(k []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(k)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// Seal appends nonce, ciphertext and tag of plaintext to dst; additional is authenticated, not sent.
func (b Box) Seal(dst, plaintext, additional []byte) []byte {
	return b.seal.Seal(dst, nil, plaintext, additional)
}

// Open appends the plaintext of sealed to dst, or returns [ErrOpen].
func (b Box) Open(dst, sealed, additional []byte) ([]byte, error) {
	if b.open == nil {
		return nil, ErrOpen
	}
	out, err := b.open.Open(dst, nil, sealed, additional)
	if err != nil {
		return nil, ErrOpen
	}
	return out, nil
}
