//! The kit's broker does what the other tests take from it.

use crate::kit::kafka::Kafka;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use std::time::Duration;

fn send(kafka: &Kafka, topic: &str, numbers: std::ops::Range<u32>) {
    let producer: BaseProducer = kafka.client().create().unwrap();
    for number in numbers {
        let (key, value) = (format!("k{}", number % 7), number.to_string());
        producer
            .send(BaseRecord::to(topic).key(&key).payload(&value))
            .map_err(|(error, _)| error)
            .unwrap();
    }
    producer.flush(Duration::from_secs(60)).unwrap();
}

#[test]
fn what_was_acknowledged_is_read_after_a_kill() {
    let mut kafka = Kafka::start();
    kafka.create_topic("t", 3);
    assert!(kafka.read("t").is_empty());
    send(&kafka, "t", 0..100);
    kafka.kill();
    kafka.run();
    send(&kafka, "t", 100..120);
    let mut numbers: Vec<u32> = kafka
        .read("t")
        .iter()
        .map(|read| read.value.parse().unwrap())
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..120).collect::<Vec<_>>());
}
