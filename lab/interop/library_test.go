package interop

import (
	"errors"
	"os"
	"os/signal"
	"syscall"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun"
)

// serveLibrary is wireguard-go, the library with a main of ours: an interface and a control socket, until SIGTERM.
func serveLibrary() error {
	if len(os.Args) != 3 {
		return errors.New("it needs the name of an interface")
	}
	name := os.Args[2]
	dev, err := tun.CreateTUN(name, device.DefaultMTU)
	if err != nil {
		return err
	}
	d := device.NewDevice(dev, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, name+": "))
	defer d.Close()
	file, err := ipc.UAPIOpen(name)
	if err != nil {
		return err
	}
	l, err := ipc.UAPIListen(name, file)
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go d.IpcHandle(c)
		}
	}()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	select {
	case <-stop:
	case <-d.Wait():
	}
	return nil
}
