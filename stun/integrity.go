package stun

import (
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"hash/crc32"
)

// fingerprintXOR keeps the checksum from matching an application's own CRC-32
// over the same bytes (RFC 8489, 14.7).
const fingerprintXOR = 0x5354554e

// fingerprint is the FINGERPRINT of a message up to that attribute, with the
// header's length already counting it.
func fingerprint(b []byte) uint32 { return crc32.ChecksumIEEE(b) ^ fingerprintXOR }

// LongTermKey is the key for integrity attributes under a long-term credential
// (RFC 8489, 9.2.2): MD5 because the protocol says so. Username, realm and
// password must already be prepared as PRECIS OpaqueString. A short-term
// credential's key is its password.
func LongTermKey(username, realm, password string) []byte {
	sum := md5.Sum([]byte(username + ":" + realm + ":" + password))
	return sum[:]
}

// VerifyIntegrity reports whether the message has a MESSAGE-INTEGRITY (HMAC-SHA1)
// made with that key.
func (m *Message) VerifyIntegrity(key []byte) bool {
	return m.integrity != 0 && m.verify(hmac.New(sha1.New, key), m.integrity)
}

// VerifyIntegritySHA256 reports whether the message has a
// MESSAGE-INTEGRITY-SHA256 made with that key. Truncated ones do not count: they
// are for usages that ask for them (RFC 8489, 14.6), and binding does not.
func (m *Message) VerifyIntegritySHA256(key []byte) bool {
	return m.integritySHA256 != 0 && m.verify(hmac.New(sha256.New, key), m.integritySHA256)
}

func (m *Message) verify(h hash.Hash, at int) bool {
	return hmac.Equal(mac(h, m.raw[:at]), m.raw[at+4:at+4+h.Size()])
}

// mac covers the message before the integrity attribute, with a length in the
// header that ends with that attribute, whatever follows it.
func mac(h hash.Hash, b []byte) []byte {
	var length [2]byte
	binary.BigEndian.PutUint16(length[:], uint16(len(b)-headerLen+4+h.Size()))
	h.Write(b[:2])
	h.Write(length[:])
	h.Write(b[4:])
	return h.Sum(nil)
}

// AppendIntegrity appends MESSAGE-INTEGRITY to msg, which must be one whole
// message, and corrects the header's length.
func AppendIntegrity(msg, key []byte) []byte {
	return appendMAC(msg, AttrMessageIntegrity, hmac.New(sha1.New, key))
}

// AppendIntegritySHA256 appends MESSAGE-INTEGRITY-SHA256 likewise.
func AppendIntegritySHA256(msg, key []byte) []byte {
	return appendMAC(msg, AttrMessageIntegritySHA256, hmac.New(sha256.New, key))
}

func appendMAC(msg []byte, t Attr, h hash.Hash) []byte {
	sum := mac(h, msg)
	w := writer{b: msg}
	w.head(t, len(sum))
	w.b = append(w.b, sum...)
	return w.done()
}

// AppendFingerprint appends FINGERPRINT likewise. It must be the last attribute.
func AppendFingerprint(msg []byte) []byte {
	w := writer{b: msg}
	w.fingerprint()
	return w.done()
}
