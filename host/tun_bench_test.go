//go:build linux

package host

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"

	"weft/engine/segment"
)

// datagram is a UDP packet of IPv4 as it is written to a TUN, with size bytes of payload: a super-packet where segment
// is not zero. Its UDP checksum is none, or left to the kernel.
func datagram(from, to netip.Addr, fromPort, toPort uint16, size, segmentSize int) []byte {
	const ip, udp = 20, 8
	b := make([]byte, segment.HeaderSize+ip+udp+size)
	p := b[segment.HeaderSize:]
	p[0], p[6], p[8], p[9] = 0x45, 0x40, 64, 17
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	copy(p[12:], from.AsSlice())
	copy(p[16:], to.AsSlice())
	var sum uint32
	for i := 0; i < ip; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum>>16+sum&0xffff))
	binary.BigEndian.PutUint16(p[ip:], fromPort)
	binary.BigEndian.PutUint16(p[ip+2:], toPort)
	binary.BigEndian.PutUint16(p[ip+4:], uint16(udp+size))
	if segmentSize > 0 {
		segment.Header{
			Flags: segment.NeedsChecksum, Type: segment.UDP, HeaderLen: ip + udp, Size: uint16(segmentSize),
			ChecksumStart: ip, ChecksumAt: 6,
		}.Put(b)
	}
	return b
}

// BenchmarkWriteToTUN writes to an interface whose other side throws away what comes: the socket that it is for is full.
func BenchmarkWriteToTUN(b *testing.B) {
	for _, c := range []struct {
		name          string
		size, segment int
	}{{"1300B", 1300, 0}, {"44x1300B", 44 * 1300, 1300}} {
		b.Run(c.name, func(b *testing.B) {
			cell := newCell(b)
			q := cell.tun(b, 1, 1, tunFeatures).Queues()[0]
			var sink net.PacketConn
			cell.do(b, func() (err error) {
				sink, err = net.ListenPacket("udp4", "10.9.0.1:9")
				return err
			})
			defer sink.Close()
			p := datagram(cellAddr(2, false), cellAddr(1, false), 9, 9, c.size, c.segment)
			b.SetBytes(int64(c.size))
			b.ReportAllocs()
			for b.Loop() {
				if err := q.Write(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkReadFromTUN has the kernel send datagrams, in bursts that the queue holds, and reads them.
func BenchmarkReadFromTUN(b *testing.B) {
	for _, run := range []int{1, 44} {
		b.Run(fmt.Sprintf("%dx1300B", run), func(b *testing.B) {
			cell := newCell(b)
			q := cell.tun(b, 1, 1, tunFeatures).Queues()[0]
			var conn *net.UDPConn
			cell.do(b, func() (err error) {
				conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.9.0.1:0")))
				return err
			})
			defer conn.Close()
			socket, err := NewUDPSocket(conn)
			if err != nil {
				b.Fatal(err)
			}
			var to UDPDest
			socket.SetDest(&to, netip.MustParseAddrPort("10.9.0.2:9"), netip.Addr{})
			w := NewUDPWriter()
			const burst = 32 // less than TUN_READQ_SIZE
			data := make([]byte, run*1300)
			buf := make([]byte, 1<<16+64)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			waiting := 0
			for b.Loop() {
				if waiting == 0 {
					b.StopTimer()
					for range burst {
						w.Add(&to, data, 1300)
						w.Flush()
					}
					waiting = burst
					b.StartTimer()
				}
				n, err := readOf(q, buf)
				if err != nil {
					b.Fatal(err)
				}
				if n > 1000 { // not one of the kernel's own
					waiting--
				}
			}
		})
	}
}

// BenchmarkTCPThroughTwoTUNs is what the interfaces alone carry: whole super-packets, and taken apart and put together.
func BenchmarkTCPThroughTwoTUNs(b *testing.B) {
	for _, apart := range []bool{false, true} {
		b.Run(fmt.Sprintf("apart=%v", apart), func(b *testing.B) {
			one, two, _, _ := pair(b, 1, apart, tunFeatures)
			for _, c := range []*cell{one, two} {
				c.do(b, func() error { return SetLinkSegments("t0", 44) })
			}
			var l net.Listener
			two.do(b, func() (err error) {
				l, err = net.Listen("tcp", "10.9.0.2:0")
				return err
			})
			defer l.Close()
			go func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 256<<10))
			}()
			var c net.Conn
			one.do(b, func() (err error) {
				c, err = net.Dial("tcp", l.Addr().String())
				return err
			})
			defer c.Close()
			buf := make([]byte, 1<<20)
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				if _, err := c.Write(buf); err != nil && err != os.ErrClosed {
					b.Fatal(err)
				}
			}
		})
	}
}
