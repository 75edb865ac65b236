package wireguard

import (
	"crypto/cipher"
	"encoding/binary"
	"time"

	"golang.org/x/crypto/blake2s"
	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/crypto/curve25519"
)

// Key is a Curve25519 key, public or private, or a symmetric one. It prints itself: use it inside this room only.
type Key = [32]byte

// The protocol's names (section 5.4).
const (
	construction = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s"
	identifier   = "WireGuard v1 zx2c4 Jason@zx2c4.com"
	labelMAC1    = "mac1----"
	labelCookie  = "cookie--"
)

var (
	initialChain = blake2s.Sum256([]byte(construction))
	initialHash  = hashOf(initialChain[:], []byte(identifier))
)

// blake2sBlock is the length of BLAKE2s' blocks in bytes, which is what HMAC pads keys to (RFC 2104).
const blake2sBlock = 64

// hashOf is the hash of two strings one after the other.
func hashOf(a, b []byte) Key {
	var buf [128]byte // on the stack, and long enough for all that is hashed here
	return blake2s.Sum256(append(append(buf[:0], a...), b...))
}

// hmacOf is HMAC-BLAKE2s of two strings one after the other. The key is not longer than a block.
func hmacOf(k, a, b []byte) Key {
	var inner [blake2sBlock + 64]byte
	var outer [2 * blake2sBlock]byte
	copy(inner[:], k)
	copy(outer[:], k)
	for i := range blake2sBlock {
		inner[i] ^= 0x36
		outer[i] ^= 0x5c
	}
	sum := blake2s.Sum256(append(append(inner[:blake2sBlock], a...), b...))
	n := copy(outer[blake2sBlock:], sum[:])
	sum = blake2s.Sum256(outer[:blake2sBlock+n])
	clear(inner[:])
	clear(outer[:])
	return sum
}

// primitives are what the time of a handshake goes into.
type primitives struct {
	curve func(scalar, point []byte) ([]byte, error) // X25519
	hmac  func(k, a, b []byte) Key                   // HMAC-BLAKE2s of two strings one after the other
}

// genuine are those of the protocol. Tests of what is around them, which have millions of handshakes, may take cheaper ones.
var genuine = &primitives{curve25519.X25519, hmacOf}

// kdf derives up to three keys (section 5.4: Kdf_n, which is HKDF).
func (x *primitives) kdf(k *Key, input []byte, outs ...*Key) {
	secret := x.hmac(k[:], input, nil)
	var last Key
	for i, out := range outs {
		last = x.hmac(secret[:], last[:min(i, 1)*len(last)], []byte{byte(i + 1)})
		*out = last
	}
	clear(secret[:])
	clear(last[:])
}

// A noise is the state of one handshake: chaining key and hash.
type noise struct {
	*primitives
	chain, hash Key
}

func (x *primitives) newNoise(responder *Key) noise {
	return noise{x, initialChain, hashOf(initialHash[:], responder[:])}
}

func (n *noise) mixHash(b []byte) { n.hash = hashOf(n.hash[:], b) }

// mixKey mixes input into the chaining key.
func (n *noise) mixKey(input []byte) { n.kdf(&n.chain, input, &n.chain) }

// mixDH mixes a shared secret in and returns the key that results with it. It is false for a public key of low
// order, whose shared secret everybody knows.
func (d *Device) mixDH(n *noise, private, public *Key) (k Key, ok bool) {
	secret, err := d.curve(private[:], public[:])
	if err != nil {
		return k, false
	}
	n.kdf(&n.chain, secret, &n.chain, &k)
	clear(secret)
	return k, true
}

var zeroNonce [chacha20poly1305.NonceSize]byte

// seal appends the sealed plaintext to dst and mixes it into the hash.
func (n *noise) seal(dst []byte, k *Key, plain []byte) []byte {
	at := len(dst)
	dst = aead(k).Seal(dst, zeroNonce[:], plain, n.hash[:])
	n.mixHash(dst[at:])
	return dst
}

// open is the opposite.
func (n *noise) open(k *Key, sealed []byte) ([]byte, bool) {
	plain, err := aead(k).Open(nil, zeroNonce[:], sealed, n.hash[:])
	if err != nil {
		return nil, false
	}
	n.mixHash(sealed)
	return plain, true
}

func aead(k *Key) cipher.AEAD {
	a, _ := chacha20poly1305.New(k[:]) // fails for other lengths only
	return a
}

// A timestamp is TAI64N: seconds, with TAI64's offset, and nanoseconds, big endian, so that its bytes compare as
// times do (section 5.4.2).
type timestamp [12]byte

// tai64Base is TAI64's label of 1970 (with the ten seconds by which TAI was ahead of UTC).
const tai64Base = 1<<62 + 10

// stampGrain is what timestamps are rounded down to, in nanoseconds, so that they tell little of our clock:
// 1/60 s, above the least time between two initiations to one peer that is taken.
const stampGrain = 1 << 24

func stampOf(t time.Time) (s timestamp) {
	binary.BigEndian.PutUint64(s[:], uint64(tai64Base+t.Unix()))
	binary.BigEndian.PutUint32(s[8:], uint32(t.Nanosecond())&^uint32(stampGrain-1))
	return s
}

// after is the least timestamp of our grain that is larger.
func (s timestamp) after() timestamp {
	sec, nsec := binary.BigEndian.Uint64(s[:]), binary.BigEndian.Uint32(s[8:])&^uint32(stampGrain-1)+stampGrain
	if nsec >= uint32(time.Second) {
		sec, nsec = sec+1, 0
	}
	binary.BigEndian.PutUint64(s[:], sec)
	binary.BigEndian.PutUint32(s[8:], nsec)
	return s
}

func (s timestamp) newer(than timestamp) bool { return string(s[:]) > string(than[:]) }

// An initiation, and where its parts are (section 5.4.2):
//
//	| 1 | 0 0 0 | sender (4) | ephemeral (32) | static (32+16) | timestamp (12+16) | MAC1 (16) | MAC2 (16) |
const (
	atEphemeral = 8
	atStatic    = atEphemeral + 32
	atStamp     = atStatic + 32 + TagSize
	macSize     = 16
	atMACs      = atStamp + 12 + TagSize // of an initiation
)

// A response (section 5.4.3):
//
//	| 2 | 0 0 0 | sender (4) | receiver (4) | ephemeral (32) | empty (0+16) | MAC1 (16) | MAC2 (16) |
const (
	atReceiver          = 8
	atResponseEphemeral = 12
	atEmpty             = atResponseEphemeral + 32
)

// A handshake is one that is under way or, for the responder, just done.
type handshake struct {
	noise     noise
	ephemeral Key // private
	local     uint32
	remote    uint32
	peerEph   Key
}

// initiate appends an initiation without its MACs.
func (d *Device) initiate(dst []byte, p *Peer, local uint32, stamp timestamp) (handshake, []byte, bool) {
	hs := handshake{noise: d.newNoise(&p.public), local: local, ephemeral: d.newPrivate()}
	public := d.publicOf(&hs.ephemeral)
	dst = append(dst, TypeInitiation, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, local)
	dst = append(dst, public[:]...)
	hs.noise.mixHash(public[:])
	hs.noise.mixKey(public[:])
	k, ok := d.mixDH(&hs.noise, &hs.ephemeral, &p.public)
	if !ok {
		return hs, dst, false
	}
	dst = hs.noise.seal(dst, &k, d.public[:])
	// The static keys' shared secret is the same every time: computed once.
	hs.noise.kdf(&hs.noise.chain, p.static[:], &hs.noise.chain, &k)
	return hs, hs.noise.seal(dst, &k, stamp[:]), true
}

// consumeInitiation opens an initiation whose MACs were checked, and finds whose it is.
func (d *Device) consumeInitiation(msg []byte) (hs handshake, p *Peer, stamp timestamp, err error) {
	hs = handshake{noise: d.newNoise(&d.public), remote: binary.LittleEndian.Uint32(msg[4:])}
	hs.peerEph = Key(msg[atEphemeral:])
	hs.noise.mixHash(hs.peerEph[:])
	hs.noise.mixKey(hs.peerEph[:])
	k, ok := d.mixDH(&hs.noise, &d.private, &hs.peerEph)
	if !ok {
		return hs, nil, stamp, ErrUnauthentic
	}
	static, ok := hs.noise.open(&k, msg[atStatic:atStamp])
	if !ok {
		return hs, nil, stamp, ErrUnauthentic
	}
	if p = d.byKey[Key(static)]; p == nil {
		return hs, nil, stamp, ErrUnknownPeer
	}
	hs.noise.kdf(&hs.noise.chain, p.static[:], &hs.noise.chain, &k)
	plain, ok := hs.noise.open(&k, msg[atStamp:atMACs])
	if !ok {
		return hs, nil, stamp, ErrUnauthentic
	}
	return hs, p, timestamp(plain), nil
}

// respond appends the response to an initiation that was consumed, without its MACs, and returns the keys.
func (d *Device) respond(dst []byte, p *Peer, hs *handshake, local uint32) (out []byte, send, receive Key, ok bool) {
	hs.local, hs.ephemeral = local, d.newPrivate()
	public := d.publicOf(&hs.ephemeral)
	dst = append(dst, TypeResponse, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, local)
	dst = binary.LittleEndian.AppendUint32(dst, hs.remote)
	dst = append(dst, public[:]...)
	n := &hs.noise
	n.mixHash(public[:])
	n.mixKey(public[:])
	_, ok1 := d.mixDH(n, &hs.ephemeral, &hs.peerEph)
	_, ok2 := d.mixDH(n, &hs.ephemeral, &p.public)
	if !ok1 || !ok2 {
		return dst, send, receive, false
	}
	k := n.mixPSK(&p.psk)
	dst = n.seal(dst, &k, nil)
	n.kdf(&n.chain, nil, &receive, &send)
	hs.forget()
	return dst, send, receive, true
}

// consumeResponse opens the response to an initiation of ours and returns the keys.
func (d *Device) consumeResponse(msg []byte, p *Peer, hs handshake) (send, receive Key, ok bool) {
	n := &hs.noise
	ephemeral := Key(msg[atResponseEphemeral:])
	n.mixHash(ephemeral[:])
	n.mixKey(ephemeral[:])
	_, ok1 := d.mixDH(n, &hs.ephemeral, &ephemeral)
	_, ok2 := d.mixDH(n, &d.private, &ephemeral)
	if !ok1 || !ok2 {
		return send, receive, false
	}
	k := n.mixPSK(&p.psk)
	if _, ok = n.open(&k, msg[atEmpty:atEmpty+TagSize]); !ok {
		return send, receive, false
	}
	n.kdf(&n.chain, nil, &send, &receive)
	hs.forget()
	return send, receive, true
}

// mixPSK mixes the pre-shared key in and returns the key that results with it (section 5.4.3).
func (n *noise) mixPSK(psk *Key) (k Key) {
	var t Key
	n.kdf(&n.chain, psk[:], &n.chain, &t, &k)
	n.mixHash(t[:])
	return k
}

// forget overwrites what the keys could be derived from.
func (hs *handshake) forget() {
	clear(hs.ephemeral[:])
	clear(hs.noise.chain[:])
	clear(hs.noise.hash[:])
}

func (d *Device) newPrivate() (k Key) {
	d.rand(k[:])
	k[0] &= 248
	k[31] = k[31]&127 | 64
	return k
}

func (d *Device) publicOf(private *Key) (k Key) {
	b, err := d.curve(private[:], curve25519.Basepoint)
	if err == nil {
		copy(k[:], b)
	}
	return k
}
