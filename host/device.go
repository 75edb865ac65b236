package host

import (
	"net"
	"strconv"
)

// UDPListenOn opens n sockets on a port of all addresses, or with port 0 on one that is free. With a device they send and receive by
// that network interface alone (SO_BINDTODEVICE), whatever the routes say, and on a port that is given they may share it with sockets
// of this process that SharePort was called for: what comes by the interface is theirs then. The network is udp4 or udp6.
func UDPListenOn(device, network string, port uint16, n int) ([]*net.UDPConn, error) {
	if device == "" {
		return UDPListen(network, ":"+strconv.Itoa(int(port)), n)
	}
	return listenBound(device, network, port, n)
}

// UDPAnyPort opens one socket on a free port, by one network interface alone if there is a device.
func UDPAnyPort(device, network string) (*net.UDPConn, error) {
	conns, err := UDPListenOn(device, network, 0, 1)
	if err != nil {
		return nil, err
	}
	return conns[0], nil
}
