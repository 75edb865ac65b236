package wireguard

import (
	"crypto/cipher"
	"encoding/binary"
	"time"
	"unsafe"
)

// A Session is the keys of one handshake. Any number of threads may seal and open under it at once; it never
// changes.
type Session struct {
	Peer      *Peer
	Local     uint32 // our index: what the peer writes as receiver
	Remote    uint32 // the peer's
	Began     time.Time
	Initiator bool // we began the handshake
	crossed   bool // and the peer another at the same time, and is the one to renew

	send, receive cipher.AEAD
}

// Keys is where the keys of either direction lie, for who wants them to be in a cache when they are needed.
func (s *Session) Keys() (send, receive unsafe.Pointer) { return keyOf(s.send), keyOf(s.receive) }

// keyOf is where a cipher's pointer points to.
func keyOf(c cipher.AEAD) unsafe.Pointer { return (*[2]unsafe.Pointer)(unsafe.Pointer(&c))[1] }

// Overhead is how much longer a transport message is than the padded packet in it, in bytes.
const Overhead = HeaderSize + TagSize

// Padded is the length of a packet of n bytes with its padding, at most most bytes (section 5.4.6).
func Padded(n, most int) int { return max(n, min((n+PaddingMultiple-1)&^(PaddingMultiple-1), most)) }

// Seal makes a transport message in place: dst gets the header, the sealed packet (padding included) and the tag, and
// is returned longer by Overhead and the packet. Dst must have that capacity; packet may lie where its sealed form
// will, HeaderSize behind the end of dst. A counter must never be used twice, and none of RejectAfterMessages or more.
//
//	| 4 | 0 0 0 | receiver (4) | counter (8) | sealed packet ... | tag (16) |
func (s *Session) Seal(dst []byte, counter uint64, packet []byte) []byte {
	at := len(dst)
	dst = dst[:at+HeaderSize]
	h := dst[at:]
	binary.LittleEndian.PutUint32(h, TypeTransport)
	binary.LittleEndian.PutUint64(h[8:], counter)
	nonce := nonceIn(h)
	dst = s.send.Seal(dst, nonce, packet, nil)
	binary.LittleEndian.PutUint32(dst[at+4:], s.Remote)
	return dst
}

// Open opens a transport message of the session and appends the packet, with its padding, to dst, which may be
// msg[HeaderSize:HeaderSize]. It is false for what does not open; replays are a [Window]'s to find. The message's index
// is overwritten.
func (s *Session) Open(dst, msg []byte) ([]byte, bool) {
	out, err := s.receive.Open(dst, nonceIn(msg), msg[HeaderSize:], nil)
	return out, err == nil
}

// nonceIn makes the nonce, four zeros and the counter (section 5.4.6), where the header is: an array of its own would
// have to be allocated.
func nonceIn(header []byte) []byte {
	clear(header[4:8])
	return header[4:HeaderSize]
}

// Transport reads the header of a transport message: our index and the counter.
func Transport(msg []byte) (local uint32, counter uint64, ok bool) {
	if len(msg) < KeepaliveSize || binary.LittleEndian.Uint32(msg) != TypeTransport {
		return 0, 0, false
	}
	return binary.LittleEndian.Uint32(msg[4:]), binary.LittleEndian.Uint64(msg[8:]), true
}

// Usable reports whether packets may be sent under the session: it is not too old (section 6.2).
func (s *Session) Usable(now time.Time) bool { return now.Sub(s.Began) < RejectAfterTime }
