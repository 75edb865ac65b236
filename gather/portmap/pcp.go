package portmap

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"weft/host"
)

// PCP's messages (RFC 6887 sections 7.1, 7.2 and 11.1), 60 bytes where nothing is optional:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|  Version = 2  |R|   Opcode    |   Reserved    |  Result (R=1) |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                      Lifetime in seconds                      |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|  R=0: client's IP address (16); R=1: epoch (4), reserved (12) |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                      Mapping nonce (12)                       |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	| Protocol = 17 |                   Reserved                    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|         Internal port         |         External port         |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                    External IP address (16)                   |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
const (
	pcpVersion = 2
	pcpHeader  = 24
	pcpMap     = 36
	pcpAnswer  = 0x80 // the bit R
	opAnnounce = 0
	opMap      = 1
	udp        = 17 // IANA's number

	// maxLifetime is the longest in seconds that is told to a client (RFC 6887 section 15): beyond, a day.
	maxLifetime = 24 * 60 * 60
)

var errNotPCP = errors.New("not an answer of PCP")

// pcpResult is a result code (RFC 6887 section 7.4).
type pcpResult uint8

const (
	pcpUnsupportedVersion pcpResult = 1
	pcpNotAuthorized      pcpResult = 2
	pcpNoResources        pcpResult = 8
	pcpExceededQuota      pcpResult = 10
	pcpAddressMismatch    pcpResult = 12
)

func (r pcpResult) Error() string {
	switch r {
	case pcpNotAuthorized:
		return "the router does not allow this machine to map ports by PCP"
	case pcpNoResources, pcpExceededQuota:
		return "the router maps no more ports by PCP"
	case pcpAddressMismatch:
		return "a NAT stands between this machine and the router that speaks PCP"
	}
	return fmt.Sprintf("the router refuses to map a port by PCP (result code %d)", uint8(r))
}

// mapRequest asks for a mapping, or with lifetime 0 to take it away.
type mapRequest struct {
	client    netip.Addr
	nonce     [12]byte
	internal  uint16 // not zero
	suggested netip.AddrPort
	lifetime  time.Duration
}

func (m mapRequest) append(dst []byte) []byte {
	dst = append(dst, pcpVersion, opMap, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(m.lifetime/time.Second))
	client := m.client.As16()
	dst = append(append(dst, client[:]...), m.nonce[:]...)
	dst = append(dst, udp, 0, 0, 0)
	dst = binary.BigEndian.AppendUint16(dst, m.internal)
	dst = binary.BigEndian.AppendUint16(dst, m.suggested.Port())
	external := m.suggested.Addr()
	if !external.IsValid() {
		external = netip.IPv4Unspecified() // as RFC 6887 section 11.1 writes no preference of IPv4
	}
	ip := external.As16()
	return append(dst, ip[:]...)
}

// appendAnnounce adds a request that asks for the epoch alone (RFC 6887 section 14.1).
func appendAnnounce(dst []byte, client netip.Addr) []byte {
	ip := client.As16()
	return append(append(dst, pcpVersion, opAnnounce, 0, 0, 0, 0, 0, 0), ip[:]...)
}

// pcpHead is the head of an answer.
type pcpHead struct {
	op       uint8
	result   pcpResult
	lifetime time.Duration
	epoch    uint32
	rest     []byte
}

func parsePCP(b []byte) (pcpHead, error) {
	if len(b) < pcpHeader || len(b) > maxAnswer || len(b)%4 != 0 || b[0] != pcpVersion || b[1]&pcpAnswer == 0 {
		return pcpHead{}, errNotPCP
	}
	return pcpHead{
		op: b[1] &^ pcpAnswer, result: pcpResult(b[3]),
		lifetime: time.Duration(min(binary.BigEndian.Uint32(b[4:]), maxLifetime)) * time.Second,
		epoch:    binary.BigEndian.Uint32(b[8:]), rest: b[pcpHeader:],
	}, nil
}

// mapAnswer is an answer to a mapRequest.
type mapAnswer struct {
	pcpHead
	nonce    [12]byte
	protocol uint8
	internal uint16
	external netip.AddrPort
}

func parseMapAnswer(b []byte) (mapAnswer, error) {
	h, err := parsePCP(b)
	if err != nil || h.op != opMap || len(h.rest) < pcpMap {
		return mapAnswer{}, errNotPCP
	}
	m := h.rest
	ip := netip.AddrFrom16([16]byte(m[20:36])).Unmap()
	return mapAnswer{
		pcpHead: h, nonce: [12]byte(m), protocol: m[12], internal: binary.BigEndian.Uint16(m[16:]),
		external: netip.AddrPortFrom(ip, binary.BigEndian.Uint16(m[18:])),
	}, nil
}

// pcp is a router that speaks PCP. Its mapping belongs to the nonce: only who knows it renews or ends it.
type pcp struct {
	conn   *net.UDPConn
	timing timing
	nonce  [12]byte
	client netip.Addr
	port   uint16
	first  lease // which finding out already got
	epochs epochs
	asked  time.Time // when a mapping was asked for last
}

// askAgain is how often a mapping is asked for by PCP and NAT-PMP although it stands by all that is known: epochs do
// not tell everything, and PCP tells the external address so only.
const askAgain = 10 * time.Minute

func findPCP(ctx context.Context, g host.Gateway, port uint16, t timing) (protocol, error) {
	c, err := dial(g)
	if err != nil {
		return nil, err
	}
	p := &pcp{conn: c, timing: t, client: g.Local, port: port}
	if _, err := rand.Read(p.nonce[:]); err != nil {
		c.Close()
		return nil, err
	}
	if p.first, err = p.ask(ctx, netip.AddrPortFrom(netip.Addr{}, port), t.lifetime); err != nil {
		c.Close()
		return nil, err
	}
	return p, nil
}

func (p *pcp) name() Protocol { return PCP }
func (p *pcp) close()         { p.conn.Close() }

func (p *pcp) apply(context.Context, uint16) (lease, error) { return p.first, nil }

func (p *pcp) refresh(ctx context.Context, l lease) (lease, error) {
	restarted := false
	err := ask(ctx, p.conn, p.timing, appendAnnounce(nil, p.client), func(b []byte) (bool, error) {
		h, err := parsePCP(b)
		if err != nil || h.op != opAnnounce {
			return false, nil
		}
		restarted = p.epochs.lost(h.epoch, time.Now()) // which an answer with an error tells too
		return true, nil
	})
	now := time.Now()
	if err == nil && !restarted && now.Before(l.renew) && now.Sub(p.asked) < askAgain {
		return l, nil
	}
	return p.ask(ctx, l.external, p.timing.lifetime)
}

func (p *pcp) remove(ctx context.Context, l lease) error {
	_, err := p.ask(ctx, l.external, 0)
	return err
}

// ask maps the port for a time; 0 ends the mapping.
func (p *pcp) ask(ctx context.Context, suggested netip.AddrPort, lifetime time.Duration) (l lease, err error) {
	request := mapRequest{client: p.client, nonce: p.nonce, internal: p.port, suggested: suggested, lifetime: lifetime}
	err = ask(ctx, p.conn, p.timing, request.append(nil), func(b []byte) (bool, error) {
		if r, err := parseNATPMP(b); err == nil && r.result == natpmpUnsupportedVersion {
			return true, errNotThere // as RFC 6887 appendix A says: the router speaks NAT-PMP alone
		}
		if h, err := parsePCP(b); err == nil && h.result == pcpUnsupportedVersion {
			return true, errNotThere
		}
		m, err := parseMapAnswer(b)
		switch {
		case err != nil || m.nonce != p.nonce || m.protocol != udp || m.internal != p.port:
			return false, nil
		case m.result != 0:
			return true, m.result
		case lifetime == 0:
			return true, nil
		case m.lifetime > p.timing.lifetime:
			m.lifetime = p.timing.lifetime // what was not asked for is not counted on
		}
		now := time.Now()
		p.epochs.lost(m.epoch, now)
		p.asked = now
		l, err = p.timing.leaseOf(m.external, m.lifetime, now)
		return true, err
	})
	return l, err
}
