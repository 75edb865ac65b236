package host

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// reads reads datagrams of one byte until there is an error.
func reads(u *UnpolledUDP) (got chan byte, ended chan error) {
	got, ended = make(chan byte, 1), make(chan error, 1)
	go func() {
		for buf := make([]byte, 1); ; {
			err := u.gate.Read(func(fd uintptr) bool {
				n, _, _ := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
				return n == 1
			})
			if err != nil {
				ended <- err
				return
			}
			got <- buf[0]
		}
	}()
	return got, ended
}

func TestWhoWaitsHearsOfADatagramHoweverLongHeHasWaited(t *testing.T) {
	const patience = 20 * time.Second
	pauses := []time.Duration{0, nap / 2, nap, 3 * nap / 2, lately, lately + 2*nap}
	var ends [2]*UnpolledUDP
	for i := range ends {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		u, err := Unpolled(c)
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = u.(*UnpolledUDP)
		defer u.Close()
	}
	in, out := ends[0], ends[1]
	got, ended := reads(in)
	for i, pause := range pauses {
		<-time.After(pause)
		if _, err := out.WriteToUDPAddrPort([]byte{byte(i)}, in.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
			t.Fatal(err)
		}
		select {
		case n := <-got:
			if int(n) != i {
				t.Errorf("datagram %d came, want %d", n, i)
			}
		case <-time.After(patience):
			t.Fatalf("who has waited for %v hears of nothing", pause)
		}
	}
	for _, pause := range pauses {
		in, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		u, err := Unpolled(in)
		if err != nil {
			t.Fatal(err)
		}
		_, ended := reads(u.(*UnpolledUDP))
		<-time.After(pause)
		u.Close()
		select {
		case err := <-ended:
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("it ends with %v", err)
			}
		case <-time.After(patience):
			t.Fatalf("who has waited for %v does not hear of the end", pause)
		}
	}
	select {
	case err := <-ended:
		t.Errorf("it ends by itself: %v", err)
	default:
	}
}
