package proxy

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"weft/engine/splice"
)

const socksVersion = 5

// The words of RFC 1928 and RFC 1929.
const (
	methodPassword = 2
	methodNone     = 0xFF

	commandConnect   = 1
	commandAssociate = 3

	addressIPv4 = 1
	addressName = 3
	addressIPv6 = 4

	passwordVersion = 1
)

// A reply is what a SOCKS request is answered with (RFC 1928 section 6).
type reply byte

const (
	replySucceeded          reply = 0
	replyFailure            reply = 1
	replyNotAllowed         reply = 2
	replyNetworkUnreachable reply = 3
	replyHostUnreachable    reply = 4
	replyRefused            reply = 5
	replyTimedOut           reply = 6 // "TTL expired"
	replyNoCommand          reply = 7
	replyNoAddressType      reply = 8
)

func replyOf(err error) reply {
	switch {
	case errors.Is(err, errNotOverlay):
		return replyNotAllowed
	case errors.Is(err, syscall.ECONNREFUSED):
		return replyRefused
	case errors.Is(err, syscall.ENETUNREACH):
		return replyNetworkUnreachable
	case errors.Is(err, errNoName), errors.Is(err, syscall.EHOSTUNREACH):
		return replyHostUnreachable
	case timedOut(err):
		return replyTimedOut
	}
	return replyFailure
}

var errSOCKS = errors.New("not SOCKS5 as RFC 1928 has it")

// A target is a destination as SOCKS writes it:
//
//	| type (1) | IPv4 (4), IPv6 (16), or length (1) and name | port (2) |
type target struct {
	host string // an address or a name
	port uint16
}

var errNoType = errors.New("no such type of address")

// readTarget reads a target.
func readTarget(r io.Reader) (target, error) {
	var b [255 + 2]byte
	if _, err := io.ReadFull(r, b[:1]); err != nil {
		return target{}, err
	}
	kind, n := b[0], 0
	switch kind {
	case addressIPv4:
		n = 4
	case addressIPv6:
		n = 16
	case addressName:
		if _, err := io.ReadFull(r, b[:1]); err != nil {
			return target{}, err
		}
		if n = int(b[0]); n == 0 {
			return target{}, errSOCKS
		}
	default:
		return target{}, errNoType
	}
	if _, err := io.ReadFull(r, b[:n+2]); err != nil {
		return target{}, err
	}
	t := target{host: string(b[:n]), port: binary.BigEndian.Uint16(b[n:])}
	if kind != addressName {
		ip, _ := netip.AddrFromSlice(b[:n])
		t.host = ip.String()
	}
	return t, nil
}

// appendAddr writes an address as a target; no address is 0.0.0.0:0.
func appendAddr(dst []byte, a netip.AddrPort) []byte {
	ip, kind := a.Addr().Unmap(), byte(addressIPv4)
	switch {
	case !ip.IsValid():
		ip = netip.IPv4Unspecified()
	case ip.Is6():
		kind = addressIPv6
	}
	dst = append(append(dst, kind), ip.AsSlice()...)
	return binary.BigEndian.AppendUint16(dst, a.Port())
}

// serveSOCKS is the whole of a SOCKS connection. The deadline for its beginning is set.
func (p *Proxy) serveSOCKS(c *client) {
	command, to, err := p.negotiate(c)
	if err != nil {
		p.cfg.Logger.Debug("a SOCKS client was turned away", "error", err)
		return
	}
	answer := func(r reply, bound netip.AddrPort) error {
		_, err := c.Write(appendAddr([]byte{socksVersion, byte(r), 0}, bound))
		return err
	}
	switch command {
	case commandConnect:
		c.SetDeadline(time.Now().Add(dialPatience + greetingPatience))
		remote, err := p.connect(p.ctx, "tcp", to.host, to.port)
		if err != nil {
			p.cfg.Logger.Debug("a SOCKS destination was not reached", "host", to.host, "port", to.port, "error", err)
			answer(replyOf(err), netip.AddrPort{})
			return
		}
		if err := answer(replySucceeded, addrPort(remote.LocalAddr())); err != nil {
			remote.Close()
			return
		}
		p.splice(c, remote)
	case commandAssociate:
		p.associate(c, to, answer)
	default:
		answer(replyNoCommand, netip.AddrPort{})
	}
}

// negotiate reads everything up to the request, which it returns.
func (p *Proxy) negotiate(c io.ReadWriter) (command byte, to target, err error) {
	var b [2 + 255]byte
	// | version | number of methods | methods |
	if _, err := io.ReadFull(c, b[:2]); err != nil {
		return 0, to, err
	}
	methods := b[2 : 2+int(b[1])]
	if _, err := io.ReadFull(c, methods); err != nil {
		return 0, to, err
	}
	offered := false
	for _, m := range methods {
		offered = offered || m == methodPassword
	}
	if b[0] != socksVersion || !offered {
		c.Write([]byte{socksVersion, methodNone})
		return 0, to, errors.New("it offers no password")
	}
	if _, err := c.Write([]byte{socksVersion, methodPassword}); err != nil {
		return 0, to, err
	}
	// | version | length | user | length | password |
	if _, err := io.ReadFull(c, b[:2]); err != nil {
		return 0, to, err
	}
	if b[0] != passwordVersion {
		return 0, to, errSOCKS
	}
	user := make([]byte, b[1])
	if _, err := io.ReadFull(c, user); err != nil {
		return 0, to, err
	}
	if _, err := io.ReadFull(c, b[:1]); err != nil {
		return 0, to, err
	}
	password := make([]byte, b[0])
	if _, err := io.ReadFull(c, password); err != nil {
		return 0, to, err
	}
	if !p.authentic(string(user), string(password)) {
		c.Write([]byte{passwordVersion, 1})
		return 0, to, errors.New("its password is wrong")
	}
	if _, err := c.Write([]byte{passwordVersion, 0}); err != nil {
		return 0, to, err
	}
	// | version | command | reserved | target |
	if _, err := io.ReadFull(c, b[:3]); err != nil {
		return 0, to, err
	}
	if b[0] != socksVersion {
		return 0, to, errSOCKS
	}
	command = b[1]
	to, err = readTarget(c)
	if errors.Is(err, errNoType) {
		c.Write(appendAddr([]byte{socksVersion, byte(replyNoAddressType), 0}, netip.AddrPort{}))
	}
	return command, to, err
}

// splice joins a client with its destination until one of them ends. Close ends the clients.
func (p *Proxy) splice(c *client, remote net.Conn) {
	c.SetDeadline(time.Time{})
	splice.Streams(c, remote, splice.IdleTCP)
}

func addrPort(a net.Addr) netip.AddrPort {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.AddrPort()
	case *net.UDPAddr:
		return a.AddrPort()
	}
	return netip.AddrPort{}
}
