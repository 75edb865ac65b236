package stun

import (
	"encoding/binary"
	"net/netip"
	"unicode/utf8"
)

const (
	// MaxPadding is the most PADDING that a request carries, in bytes: it keeps
	// the datagram below the 64 KiB that RFC 5780, 7.6, and UDP allow.
	MaxPadding = 64_000

	// maxSoftware is the longest SOFTWARE value sent, in bytes (RFC 8489, 14.14).
	maxSoftware = 509
)

// Request says what a binding request carries. The zero value is the bare
// header, which any server answers.
type Request struct {
	Software     string // SOFTWARE; cut to 509 bytes
	Change       Change // CHANGE-REQUEST with these flags; 0 leaves it out
	Padding      int    // bytes of PADDING, rounded up to four, at most MaxPadding
	ResponsePort uint16 // RESPONSE-PORT; 0 leaves it out
	Fingerprint  bool   // FINGERPRINT, for sockets that carry more than STUN
}

// AppendBindingRequest appends a binding request to dst.
func AppendBindingRequest(dst []byte, id TransactionID, r Request) []byte {
	w := newWriter(dst, ClassRequest, id)
	if r.Change != 0 {
		w.change(r.Change)
	}
	if r.ResponsePort != 0 {
		w.port(AttrResponsePort, r.ResponsePort)
	}
	if r.Software != "" {
		w.text(AttrSoftware, cut(r.Software, maxSoftware))
	}
	if r.Padding > 0 {
		w.padding((min(r.Padding, MaxPadding) + 3) &^ 3)
	}
	if r.Fingerprint {
		w.fingerprint()
	}
	return w.done()
}

// cut shortens s to at most n bytes without splitting a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// writer appends one message to a buffer that may already hold other bytes. Its
// callers know their attributes to be small, so that lengths cannot overflow.
type writer struct {
	b     []byte
	start int // where the message begins in b
}

func newWriter(dst []byte, c Class, id TransactionID) writer {
	w := writer{b: dst, start: len(dst)}
	w.b = binary.BigEndian.AppendUint16(w.b, messageType(c, MethodBinding))
	w.b = append(w.b, 0, 0) // length: set by done
	w.b = binary.BigEndian.AppendUint32(w.b, cookie)
	w.b = append(w.b, id[:]...)
	return w
}

// newReply begins a reply to req, whose cookie and transaction ID, in RFC 3489
// one ID of 16 bytes, it repeats.
func newReply(dst []byte, c Class, req []byte) writer {
	w := writer{b: dst, start: len(dst)}
	w.b = binary.BigEndian.AppendUint16(w.b, messageType(c, MethodBinding))
	w.b = append(w.b, 0, 0)
	w.b = append(w.b, req[4:headerLen]...)
	return w
}

// size is the length of the message so far, in bytes.
func (w *writer) size() int { return len(w.b) - w.start }

// setLength writes the header's length as if extra more bytes followed.
func (w *writer) setLength(extra int) {
	binary.BigEndian.PutUint16(w.b[w.start+2:], uint16(w.size()+extra-headerLen))
}

func (w *writer) done() []byte {
	w.setLength(0)
	return w.b
}

func (w *writer) head(t Attr, n int) {
	w.b = binary.BigEndian.AppendUint16(w.b, uint16(t))
	w.b = binary.BigEndian.AppendUint16(w.b, uint16(n))
}

// align pads with zeros to the next multiple of four.
func (w *writer) align() {
	for w.size()%4 != 0 {
		w.b = append(w.b, 0)
	}
}

func (w *writer) text(t Attr, s string) {
	w.head(t, len(s))
	w.b = append(w.b, s...)
	w.align()
}

func (w *writer) change(c Change) {
	w.head(AttrChangeRequest, 4)
	w.b = append(w.b, 0, 0, 0, byte(c))
}

// port writes RESPONSE-PORT or AttrAlternatePort, which have one form.
func (w *writer) port(t Attr, p uint16) {
	w.head(t, 4)
	w.b = binary.BigEndian.AppendUint16(w.b, p)
	w.b = append(w.b, 0, 0)
}

func (w *writer) padding(n int) {
	w.head(AttrPadding, n)
	var zeros [256]byte
	for n > 0 {
		k := min(n, len(zeros))
		w.b = append(w.b, zeros[:k]...)
		n -= k
	}
	w.align()
}

// addressSize is what an address attribute takes, header included, in bytes.
func addressSize(a netip.Addr) int {
	if a.Unmap().Is4() {
		return 12
	}
	return 24
}

// address writes a transport address; IPv4 in IPv6 is written as the IPv4 that
// it is. The XOR form masks with cookie and transaction ID.
func (w *writer) address(t Attr, a netip.AddrPort) {
	ip := a.Addr().Unmap()
	w.head(t, addressSize(ip)-4)
	family := byte(familyIPv6)
	if ip.Is4() {
		family = familyIPv4
	}
	w.b = append(w.b, 0, family)
	at := len(w.b)
	w.b = binary.BigEndian.AppendUint16(w.b, a.Port())
	if ip.Is4() {
		v := ip.As4()
		w.b = append(w.b, v[:]...)
	} else {
		v := ip.As16()
		w.b = append(w.b, v[:]...)
	}
	if t == AttrXORMappedAddress {
		mask := w.b[w.start+4 : w.start+headerLen]
		w.b[at] ^= mask[0]
		w.b[at+1] ^= mask[1]
		for i := range w.b[at+2:] {
			w.b[at+2+i] ^= mask[i]
		}
	}
}

func (w *writer) errorCode(code int, reason string) {
	w.head(AttrErrorCode, 4+len(reason))
	w.b = append(w.b, 0, 0, byte(code/100), byte(code%100))
	w.b = append(w.b, reason...)
	w.align()
}

// unknownAttributes lists types. RFC 3489 had no padding and asks for one type
// to be repeated where the list is odd; that is harmless to its successors.
func (w *writer) unknownAttributes(list []Attr, classic bool) {
	n := 2 * len(list)
	if classic {
		n = (n + 3) &^ 3
	}
	w.head(AttrUnknownAttributes, n)
	for _, t := range list {
		w.b = binary.BigEndian.AppendUint16(w.b, uint16(t))
	}
	if classic && len(list)%2 != 0 {
		w.b = binary.BigEndian.AppendUint16(w.b, uint16(list[len(list)-1]))
	}
	w.align()
}

func (w *writer) fingerprint() {
	w.setLength(8)
	sum := fingerprint(w.b[w.start:])
	w.head(AttrFingerprint, 4)
	w.b = binary.BigEndian.AppendUint32(w.b, sum)
}
