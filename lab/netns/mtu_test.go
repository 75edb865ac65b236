package netns

import (
	"strconv"
	"testing"
)

func TestASegmentCarriesAsManyBytesAsItIsTold(t *testing.T) {
	if err := Available(); err != nil {
		t.Skip(err)
	}
	l, err := New(t.Context(), "wmtu")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	a, err := l.AddHost("a")
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.AddHost("b")
	if err != nil {
		t.Fatal(err)
	}
	for _, mtu := range []int{9000, 1280} {
		if err := l.Public().SetMTU(mtu); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			payload int // 20 bytes of IPv4 header and 8 of ICMP go around it
			passes  bool
		}{{mtu - 28, true}, {mtu - 27, false}} {
			_, err := a.Run(t.Context(), "ping", "-q", "-c", "1", "-W", "2", "-M", "do", "-s", strconv.Itoa(c.payload), b.Addr().String())
			if (err == nil) != c.passes {
				t.Errorf("MTU %d, %d bytes: %v", mtu, c.payload+28, err)
			}
		}
	}
}
