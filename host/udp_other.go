//go:build !linux

package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// UDPListen opens a socket; here several do not share a port.
func UDPListen(network, address string, n int) ([]*net.UDPConn, error) {
	c, err := net.ListenPacket(network, address)
	if err != nil {
		return nil, fmt.Errorf("listening on UDP %s: %w", address, err)
	}
	return []*net.UDPConn{c.(*net.UDPConn)}, nil
}

func (s *UDPSocket) prepare() error { return nil }

// WithoutOffload does nothing: there is none.
func (s *UDPSocket) WithoutOffload() error { return nil }

// WithoutLocal does nothing: nobody says.
func (s *UDPSocket) WithoutLocal() error { return nil }

// Stamp fails: nothing says when messages came.
func (s *UDPSocket) Stamp() error { return errors.ErrUnsupported }

// UDPReader receives from one socket, one datagram at a time. It is one goroutine's.
type UDPReader struct {
	socket *UDPSocket
	memory [1 << 16]byte
	reads  [1]UDPRead
}

// NewUDPReader makes a reader.
func NewUDPReader(s *UDPSocket) *UDPReader { return &UDPReader{socket: s} }

// Read waits for a datagram and returns it, valid until the next Read.
func (r *UDPReader) Read() ([]UDPRead, error) {
	n, from, err := r.socket.conn.(*net.UDPConn).ReadFromUDPAddrPort(r.memory[:])
	if err != nil {
		return nil, err
	}
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	r.reads[0] = UDPRead{Data: r.memory[:n:n], Segment: n, From: from}
	return r.reads[:], nil
}

// More is true: nobody knows here what there is.
func (r *UDPReader) More() bool { return true }

// TryRead fails: who reads here waits.
func (r *UDPReader) TryRead() ([]UDPRead, error) { return nil, errors.ErrUnsupported }

// Close does nothing: the buffer goes with the reader.
func (r *UDPReader) Close() {}

type udpName struct{ to netip.AddrPort }

func (d *udpName) set(_ *UDPSocket, to netip.AddrPort, _ netip.Addr) { d.to = to }

type udpSystem struct{}

func (*udpSystem) init() {}

func (w *UDPWriter) send() {
	for i := range w.messages {
		m := &w.messages[i]
		for data := range w.datagrams(m) {
			if _, err := m.to.socket.conn.WriteToUDPAddrPort(data, m.to.system.to); err != nil {
				w.count.Failed++
				continue
			}
			w.count.add(UDPCount{Datagrams: 1, Bytes: len(data)})
		}
	}
}

// Unread is not known here.
func (s *UDPSocket) Unread() bool { return false }
