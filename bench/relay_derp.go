package bench

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"golang.org/x/crypto/nacl/box"
)

// What DERP, the protocol of derper, needs to be spoken as a sender and a receiver. After the upgrade of an HTTP
// connection come frames:
//
//	| type (1) | length of the body (4) | body |
//
//	server -> client   server key    magic (8) | key (32)
//	client -> server   client info   key (32) | nonce (24) | sealed: JSON |
//	server -> client   server info   nonce (24) | sealed: JSON |
//	client -> server   send          key of the receiver (32) | datagram
//	server -> client   receive       key of the sender (32) | datagram
//
// Sealed is NaCl's crypto_box between the two keys.
const (
	derpHeader  = 5
	derpKey     = 32
	derpMagic   = "DERP\xf0\x9f\x94\x91"
	derpVersion = `{"version":2}`

	derpServerKey  = 0x01
	derpClientInfo = 0x02
	derpServerInfo = 0x03
	derpSend       = 0x04
	derpReceive    = 0x05
)

var derpFraming = framing{prefix: derpHeader + derpKey, size: func(b []byte) (int, bool) {
	return derpHeader + int(binary.BigEndian.Uint32(b[1:])), b[0] == derpReceive
}}

// derpFrame adds a frame's header.
func derpFrame(dst []byte, kind byte, body int) []byte {
	return binary.BigEndian.AppendUint32(append(dst, kind), uint32(body))
}

// derpFlow joins two clients of the derper at addr.
func derpFlow(ctx context.Context, addr string, f *flow) (sender, error) {
	from, _, err := derpConnect(ctx, addr)
	if err != nil {
		return nil, err
	}
	to, receiver, err := derpConnect(ctx, addr)
	if err != nil {
		from.Close()
		return nil, err
	}
	prefix := append(derpFrame(nil, derpSend, derpKey+payload), receiver[:]...)
	return newStreamFlow(derpFraming, from, to, prefix, f), nil
}

// derpConnect opens a client's connection, and returns its public key too.
func derpConnect(ctx context.Context, addr string) (net.Conn, *[derpKey]byte, error) {
	// Whether it is the derper that was started does not matter for its speed.
	c, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, nil, fmt.Errorf("connecting to derper: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	public, early, err := derpGreet(c)
	if err != nil {
		c.Close()
		return nil, nil, fmt.Errorf("greeting derper: %w", err)
	}
	return &earlyConn{c, early}, public, nil
}

func derpGreet(c net.Conn) (own *[derpKey]byte, r *bufio.Reader, err error) {
	if _, err := io.WriteString(c, "GET /derp HTTP/1.1\r\nHost: derper\r\nConnection: Upgrade\r\nUpgrade: DERP\r\n\r\n"); err != nil {
		return nil, nil, err
	}
	r = bufio.NewReader(c)
	answer, err := http.ReadResponse(r, nil)
	if err != nil {
		return nil, nil, err
	}
	if answer.StatusCode != http.StatusSwitchingProtocols {
		return nil, nil, fmt.Errorf("it answers %s", answer.Status)
	}
	hello, err := derpRead(r, derpServerKey)
	if err != nil || len(hello) < len(derpMagic)+derpKey || string(hello[:len(derpMagic)]) != derpMagic {
		return nil, nil, errors.Join(err, errors.New("it does not speak DERP"))
	}
	server := [derpKey]byte(hello[len(derpMagic):])
	own, private, err := box.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	var nonce [24]byte
	rand.Read(nonce[:])
	info := append(own[:], nonce[:]...)
	info = box.Seal(info, []byte(derpVersion), &nonce, &server, private)
	if _, err := c.Write(append(derpFrame(nil, derpClientInfo, len(info)), info...)); err != nil {
		return nil, nil, err
	}
	_, err = derpRead(r, derpServerInfo)
	return own, r, err
}

// derpRead reads a frame of a kind.
func derpRead(r io.Reader, kind byte) ([]byte, error) {
	var head [derpHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if head[0] != kind || n > 1<<10 {
		return nil, fmt.Errorf("a frame of type %#x and %d bytes comes instead of one of type %#x", head[0], n, kind)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

// earlyConn reads first what was read too far.
type earlyConn struct {
	net.Conn
	early *bufio.Reader
}

func (c *earlyConn) Read(b []byte) (int, error) {
	if c.early != nil {
		if c.early.Buffered() > 0 {
			return c.early.Read(b)
		}
		c.early = nil
	}
	return c.Conn.Read(b)
}
