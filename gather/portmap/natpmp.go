package portmap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"weft/host"
)

// NAT-PMP's messages (RFC 6886 sections 3.2 and 3.3):
//
//	request   | 0 | 0 |                                                          external address?
//	answer    | 0 | 128 | result (2) | epoch (4) | IPv4 address (4) |
//	request   | 0 | 1 | 0 (2) | internal port (2) | external port (2) | lifetime (4) |     map UDP
//	answer    | 0 | 129 | result (2) | epoch (4) | internal port (2) | external port (2) | lifetime (4) |
//
// A lifetime of 0 takes a mapping away; with internal port 0 it would take all of this machine's away.
const (
	natpmpVersion     = 0
	natpmpAnswer      = 128
	opAddress         = 0
	opMapUDP          = 1
	natpmpHead        = 8
	natpmpAddressSize = 12
	natpmpMapSize     = 16
)

var errNotNATPMP = errors.New("not an answer of NAT-PMP")

// natpmpResult is a result code (RFC 6886 section 3.5).
type natpmpResult uint16

const (
	natpmpUnsupportedVersion natpmpResult = 1
	natpmpNotAuthorized      natpmpResult = 2
	natpmpNetworkFailure     natpmpResult = 3
	natpmpNoResources        natpmpResult = 4
)

func (r natpmpResult) Error() string {
	switch r {
	case natpmpNotAuthorized:
		return "the router does not allow this machine to map ports by NAT-PMP"
	case natpmpNetworkFailure:
		return "the router has no external address: it is not connected"
	case natpmpNoResources:
		return "the router maps no more ports by NAT-PMP"
	}
	return fmt.Sprintf("the router refuses to map a port by NAT-PMP (result code %d)", uint16(r))
}

// natpmpHeader is the head of an answer.
type natpmpHeader struct {
	op     uint8
	result natpmpResult
	epoch  uint32
}

func parseNATPMP(b []byte) (natpmpHeader, error) {
	if len(b) < natpmpHead || b[0] != natpmpVersion || b[1] < natpmpAnswer {
		return natpmpHeader{}, errNotNATPMP
	}
	return natpmpHeader{b[1] - natpmpAnswer, natpmpResult(binary.BigEndian.Uint16(b[2:])), binary.BigEndian.Uint32(b[4:])}, nil
}

// addressAnswer tells the external address.
type addressAnswer struct {
	natpmpHeader
	external netip.Addr // not valid with an error
}

func parseAddress(b []byte) (addressAnswer, error) {
	h, err := parseNATPMP(b)
	if err != nil || h.op != opAddress || h.result == 0 && len(b) != natpmpAddressSize {
		return addressAnswer{}, errNotNATPMP
	}
	a := addressAnswer{natpmpHeader: h}
	if h.result == 0 {
		a.external = netip.AddrFrom4([4]byte(b[8:]))
	}
	return a, nil
}

// portAnswer tells of a mapping.
type portAnswer struct {
	natpmpHeader
	internal, external uint16 // zero with an error
	lifetime           time.Duration
}

func parsePort(b []byte) (portAnswer, error) {
	h, err := parseNATPMP(b)
	if err != nil || h.op != opMapUDP || h.result == 0 && len(b) != natpmpMapSize {
		return portAnswer{}, errNotNATPMP
	}
	a := portAnswer{natpmpHeader: h}
	if h.result == 0 {
		a.internal, a.external = binary.BigEndian.Uint16(b[8:]), binary.BigEndian.Uint16(b[10:])
		a.lifetime = time.Duration(min(binary.BigEndian.Uint32(b[12:]), maxLifetime)) * time.Second
	}
	return a, nil
}

// appendMapUDP adds a request to map a port.
func appendMapUDP(dst []byte, internal, external uint16, lifetime time.Duration) []byte {
	dst = binary.BigEndian.AppendUint16(append(dst, natpmpVersion, opMapUDP, 0, 0), internal)
	dst = binary.BigEndian.AppendUint16(dst, external)
	return binary.BigEndian.AppendUint32(dst, uint32(lifetime/time.Second))
}

// natpmp is a router that speaks NAT-PMP.
type natpmp struct {
	conn     *net.UDPConn
	timing   timing
	port     uint16
	external netip.Addr
	epochs   epochs
	asked    time.Time // when a mapping was asked for last
}

func findNATPMP(ctx context.Context, g host.Gateway, port uint16, t timing) (protocol, error) {
	c, err := dial(g)
	if err != nil {
		return nil, err
	}
	p := &natpmp{conn: c, timing: t, port: port}
	if _, err := p.look(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return p, nil
}

func (p *natpmp) name() Protocol { return NATPMP }
func (p *natpmp) close()         { p.conn.Close() }

// look asks for the external address, and reports whether the router was restarted since it was asked last.
func (p *natpmp) look(ctx context.Context) (restarted bool, err error) {
	err = ask(ctx, p.conn, p.timing, []byte{natpmpVersion, opAddress}, func(b []byte) (bool, error) {
		if h, err := parsePCP(b); err == nil && h.result == pcpUnsupportedVersion {
			return true, errNotThere // it speaks PCP alone
		}
		a, err := parseAddress(b)
		switch {
		case err != nil:
			return false, nil
		case a.result == natpmpUnsupportedVersion:
			return true, errNotThere
		case a.result != 0:
			return true, a.result
		}
		if err := checkExternal(a.external); err != nil {
			return true, err
		}
		restarted = p.epochs.lost(a.epoch, time.Now())
		p.external = a.external
		return true, nil
	})
	return restarted, err
}

func (p *natpmp) apply(ctx context.Context, suggested uint16) (l lease, err error) {
	err = ask(ctx, p.conn, p.timing, appendMapUDP(nil, p.port, suggested, p.timing.lifetime), func(b []byte) (bool, error) {
		a, err := parsePort(b)
		switch {
		case err != nil || a.result == 0 && a.internal != p.port:
			return false, nil
		case a.result != 0:
			return true, a.result
		}
		now := time.Now()
		p.epochs.lost(a.epoch, now)
		p.asked = now
		l, err = p.timing.leaseOf(netip.AddrPortFrom(p.external, a.external), min(a.lifetime, p.timing.lifetime), now)
		return true, err
	})
	return l, err
}

func (p *natpmp) refresh(ctx context.Context, l lease) (lease, error) {
	restarted, err := p.look(ctx)
	if err != nil {
		return l, err
	}
	now := time.Now()
	if !restarted && p.external == l.external.Addr() && now.Before(l.renew) && now.Sub(p.asked) < askAgain {
		return l, nil
	}
	return p.apply(ctx, l.external.Port())
}

func (p *natpmp) remove(ctx context.Context, _ lease) error {
	return ask(ctx, p.conn, p.timing, appendMapUDP(nil, p.port, 0, 0), func(b []byte) (bool, error) {
		a, err := parsePort(b)
		switch {
		case err != nil || a.result == 0 && a.internal != p.port:
			return false, nil
		case a.result != 0:
			return true, a.result
		}
		return true, nil
	})
}
