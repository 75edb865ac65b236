// Package uapi lets the tools of the WireGuard ecosystem look at an interface and change it: wg(8), and whatever else
// speaks the configuration protocol of wireguard.com/xplatform on a unix socket at /var/run/wireguard/NAME.sock.
//
//	get=1\n\n                    -> key=value\n ... errno=0\n\n
//	set=1\nkey=value\n ... \n    -> errno=0\n\n
//
// The package parses, prints and listens; what an interface is and what may be changed is its [Device]'s to say. A set is
// read whole before any of it is done, and is done whole or not at all. Everything is bounded: the length of a line and of
// a set, the connections at once, the time that one may take.
//
// A get tells the private key, as the protocol has it, so the socket is of mode 0600, and who connects is asked of the
// kernel too. Nothing that is read or written here is ever logged.
package uapi

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"weft/key"
)

const (
	// maxLine bounds a line in bytes. The longest is a preshared key: 13 and 64 digits.
	maxLine = 256
	// maxSet bounds a set in bytes: some 50,000 peers with a prefix each.
	maxSet = 8 << 20
)

// A Device is an interface that is looked at and changed. Its methods are called by several goroutines.
type Device interface {
	Get() (Interface, error)
	// Set does all of a change or, with an error, nothing. An [Error] in it says what the tool hears.
	Set(Change) error
}

// An Error is a failure with the number that tools print in words.
type Error struct {
	Errno syscall.Errno
	Why   string
}

func (e *Error) Error() string { return e.Why }

func refuse(errno syscall.Errno, format string, args ...any) error {
	return &Error{errno, fmt.Sprintf(format, args...)}
}

// Interface is what a get tells.
type Interface struct {
	Private key.NodePrivate
	Port    uint16
	FwMark  uint32
	Peers   []Peer
}

// A Peer is one in a get.
type Peer struct {
	Key         key.NodePublic
	PSK         [key.Size]byte // zero: none
	Endpoint    netip.AddrPort // not valid: none
	HandshakeAt time.Time      // zero: never
	RxBytes     uint64
	TxBytes     uint64
	Keepalive   time.Duration // zero: none
	Allowed     []netip.Prefix
}

// A Change is what a set wants. Absent fields are nil.
type Change struct {
	Private      *key.NodePrivate // a zero key: none is to be had
	Port         *uint16
	FwMark       *uint32
	ReplacePeers bool // those that are not in Peers go
	Peers        []PeerChange
}

// A PeerChange is what a set wants of one peer.
type PeerChange struct {
	Key            key.NodePublic
	Remove         bool
	UpdateOnly     bool // unless it is there, nothing is to be done
	ReplaceAllowed bool
	PSK            *[key.Size]byte
	Endpoint       *netip.AddrPort
	Keepalive      *time.Duration
	Allowed        []AllowedChange // in their order
}

// An AllowedChange adds a prefix to a peer, or takes one away.
type AllowedChange struct {
	Prefix netip.Prefix
	Remove bool
}

// AppendInterface adds what a get answers, without its end.
func AppendInterface(dst []byte, i Interface) []byte {
	if !i.Private.IsZero() {
		dst = appendKey(dst, "private_key", i.Private.RevealBytes())
	}
	if i.Port != 0 {
		dst = fmt.Appendf(dst, "listen_port=%d\n", i.Port)
	}
	if i.FwMark != 0 {
		dst = fmt.Appendf(dst, "fwmark=%d\n", i.FwMark)
	}
	for _, p := range i.Peers {
		dst = appendKey(dst, "public_key", p.Key.Bytes())
		dst = appendKey(dst, "preshared_key", p.PSK)
		dst = append(dst, "protocol_version=1\n"...)
		if p.Endpoint.IsValid() {
			dst = fmt.Appendf(dst, "endpoint=%s\n", p.Endpoint)
		}
		var sec, nsec int64
		if !p.HandshakeAt.IsZero() {
			sec, nsec = p.HandshakeAt.Unix(), int64(p.HandshakeAt.Nanosecond())
		}
		dst = fmt.Appendf(dst, "last_handshake_time_sec=%d\nlast_handshake_time_nsec=%d\ntx_bytes=%d\nrx_bytes=%d\npersistent_keepalive_interval=%d\n",
			sec, nsec, p.TxBytes, p.RxBytes, p.Keepalive/time.Second)
		for _, a := range p.Allowed {
			dst = fmt.Appendf(dst, "allowed_ip=%s\n", a)
		}
	}
	return dst
}

func appendKey(dst []byte, name string, k [key.Size]byte) []byte {
	dst = append(append(dst, name...), '=')
	return append(hex.AppendEncode(dst, k[:]), '\n')
}

// ParseChange reads a set, from behind its first line to the empty line that ends it. Its errors have a number, but for
// those of the reader.
func ParseChange(r *bufio.Reader) (Change, error) {
	var c Change
	var p *PeerChange
	for size := 0; ; {
		line, err := readLine(r)
		if err != nil {
			return Change{}, err
		}
		if line == "" {
			return c, nil
		}
		if size += len(line) + 1; size > maxSet {
			return Change{}, refuse(syscall.E2BIG, "a set of more than %d bytes", maxSet)
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			return Change{}, refuse(syscall.EINVAL, "a line that says nothing of anything")
		}
		if name == "public_key" {
			k, err := parseKey(value)
			if err != nil {
				return Change{}, err
			}
			public, _ := key.PublicFrom[key.Node](k[:])
			c.Peers = append(c.Peers, PeerChange{Key: public})
			p = &c.Peers[len(c.Peers)-1]
			continue
		}
		if p == nil {
			err = c.set(name, value)
		} else {
			err = p.set(name, value)
		}
		if err != nil {
			return Change{}, err
		}
	}
}

// readLine reads a line without its end.
func readLine(r *bufio.Reader) (string, error) {
	var b []byte
	for {
		c, err := r.ReadByte()
		if err != nil {
			if err == io.EOF && len(b) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return "", err
		}
		if c == '\n' {
			return string(b), nil
		}
		if b = append(b, c); len(b) > maxLine {
			return "", refuse(syscall.E2BIG, "a line of more than %d bytes", maxLine)
		}
	}
}

// set takes in a line on the interface. A value is never repeated: it may be a key.
func (c *Change) set(name, value string) error {
	switch name {
	case "private_key":
		k, err := parseKey(value)
		if err != nil {
			return err
		}
		private, _ := key.PrivateFrom[key.Node](k[:]) // zeros are no key, which is what they say here
		c.Private = &private
	case "listen_port":
		n, err := parseNumber(value, 16)
		port := uint16(n)
		c.Port = &port
		return err
	case "fwmark":
		n, err := parseNumber(value, 32)
		mark := uint32(n)
		c.FwMark = &mark
		return err
	case "replace_peers":
		c.ReplacePeers = true
		return parseTrue(value)
	default:
		return refuse(syscall.EINVAL, "%.20q is unknown of an interface", name)
	}
	return nil
}

// set takes in a line on a peer.
func (p *PeerChange) set(name, value string) error {
	switch name {
	case "remove":
		p.Remove = true
		return parseTrue(value)
	case "update_only":
		p.UpdateOnly = true
		return parseTrue(value)
	case "replace_allowed_ips":
		p.ReplaceAllowed, p.Allowed = true, nil
		return parseTrue(value)
	case "preshared_key":
		k, err := parseKey(value)
		p.PSK = &k
		return err
	case "endpoint":
		a, err := netip.ParseAddrPort(value)
		if err != nil || a.Port() == 0 || a.Addr().IsUnspecified() {
			return refuse(syscall.EINVAL, "an endpoint that nothing can be sent to")
		}
		a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
		p.Endpoint = &a
	case "persistent_keepalive_interval":
		n, err := parseNumber(value, 16)
		d := time.Duration(n) * time.Second
		p.Keepalive = &d
		return err
	case "allowed_ip":
		text, remove := strings.CutPrefix(value, "-")
		a, err := netip.ParsePrefix(text)
		if err != nil || a.Addr().Is4In6() {
			return refuse(syscall.EINVAL, "an allowed IP that is no prefix")
		}
		p.Allowed = append(p.Allowed, AllowedChange{a.Masked(), remove})
	case "protocol_version":
		if value != "1" {
			return refuse(syscall.EPROTONOSUPPORT, "another version of WireGuard than 1")
		}
	default:
		return refuse(syscall.EINVAL, "%.20q is unknown of a peer", name)
	}
	return nil
}

func parseKey(s string) (k [key.Size]byte, err error) {
	if n, err := hex.Decode(k[:], []byte(s[:min(len(s), 2*key.Size)])); err != nil || n != key.Size || len(s) != 2*key.Size {
		return [key.Size]byte{}, refuse(syscall.EINVAL, "a key that is none")
	}
	return k, nil
}

func parseNumber(s string, bits int) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, bits)
	if err != nil {
		return 0, refuse(syscall.EINVAL, "a number that is none, or too large")
	}
	return n, nil
}

func parseTrue(s string) error {
	if s != "true" {
		return refuse(syscall.EINVAL, "what can only be true is not")
	}
	return nil
}

// Apply returns a peer's prefixes after a change, sorted, each once.
func (p PeerChange) Apply(allowed []netip.Prefix) []netip.Prefix {
	if p.ReplaceAllowed {
		allowed = nil
	}
	allowed = slices.Clone(allowed)
	for _, a := range p.Allowed {
		allowed = slices.DeleteFunc(allowed, func(x netip.Prefix) bool { return x == a.Prefix })
		if !a.Remove {
			allowed = append(allowed, a.Prefix)
		}
	}
	slices.SortFunc(allowed, netip.Prefix.Compare)
	return allowed
}

// errnoOf is what a tool hears of an error.
func errnoOf(err error) syscall.Errno {
	var e *Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.Errno
	}
	return syscall.EIO
}
